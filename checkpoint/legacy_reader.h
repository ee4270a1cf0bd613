// The container that torch.save wrote before zip, and still writes with
// _use_new_zipfile_serialization=False: five pickles back to back (magic, protocol, system, root,
// storage keys), then per key its numel and its bytes. Tested by legacy_reader_test.cc. Format:
// docs/format/container.md.
#pragma once

#include <memory>

#include "checkpoint/container.h"
#include "checkpoint/status.h"

namespace checkpoint {

// Errors: kMalformedContainer (no legacy file; keys missing, unknown, twice; bytes left over),
// kTruncated, kUnsupported (big-endian, other protocol), and those of the pickle.
Result<TorchFile> ReadLegacyFile(const std::shared_ptr<const MappedFile>& file);

}  // namespace checkpoint
