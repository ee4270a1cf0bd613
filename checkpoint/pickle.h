// Pickle both ways. The reader is a small virtual machine over an allow-list of opcodes (protocol 2
// in full, the parts of 3-5 that real checkpoints use) with limits (limits.h); it imports and calls
// nothing. The writer emits protocol 2 exactly as CPython's C pickler does (memo numbers, batches
// of 1000, integer widths), so that reading a file that the framework wrote and writing it again
// gives the same bytes. Format: docs/format/container.md. Tested by pickle_test.cc,
// pickle_limits_test.cc, pickle_torch_test.cc (against Python), pickle_corpus_test.cc (real files).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/status.h"
#include "checkpoint/value.h"

namespace checkpoint {

// Resolves a persistent id (always a tuple ('storage', class, key, location, numel[, view
// metadata])) to its storage. The container supplies it; equal keys must give the same StoragePtr.
// An unknown key is the container's error.
using StorageResolver = std::function<Result<StoragePtr>(const Value& pid)>;

struct PickleResult {
  Value root;
  int64_t bytes_read = 0;  // position behind STOP: legacy files hold several pickles back to back
};

// `where` names file and record for errors. Errors: kMalformedPickle, kLimitExceeded, kTruncated,
// and the resolver's.
Result<PickleResult> ReadPickle(std::span<const std::byte> bytes, const StorageResolver& resolve,
                                const std::string& where);

struct PickleOutput {
  std::string bytes;
  // Storages in order of first appearance; storage i is the record data/<i>. No storage twice.
  std::vector<StoragePtr> storages;
};

enum class StringMemo {
  // As CPython: one string object, one memo entry. For trees that were read and go back unchanged.
  kByIdentity,
  // Equal strings are one object. For trees that we compose: output depends on content alone.
  kByContent,
};

// Writes protocol 2. Storages are renumbered "0", "1", ... by first appearance; a StorageNode whose
// pid already says the right key, class, location and numel is written from its own pid nodes.
// Classes are one object by content always. REQUIRES: no cycles, no key twice in a mapping, and
// depth at most 2 * kPickleDepthMax (of what was read, the reader guarantees half of that).
PickleOutput WritePickle(const Value& root, StringMemo memo);

}  // namespace checkpoint
