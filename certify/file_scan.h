// The files of a checkpoint as bytes: one pass that takes the digest of each file and checks the
// CRC-32 of its records. Internal to certify/. Tested by file_scan_test.cc.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "certify/certify.h"
#include "checkpoint/callables.h"
#include "checkpoint/container.h"
#include "checkpoint/status.h"

namespace certify {

struct ListedFile {
  std::string name;  // relative to the run folder, '/' between folders
  std::filesystem::path path;
};

// All regular files of the step folder, and those of the run folder that belong to a checkpoint
// (latest, latest_universal, latest_checkpointed_iteration.txt, zero_to_fp32.py), sorted by name.
// Our own *.shardproof.json are left out. Errors: those of OpenStepFolder, kLimitExceeded.
checkpoint::Result<std::vector<ListedFile>> ListFiles(const std::filesystem::path& path,
                                                      const std::string& tag, bool universal);

struct BadRecord {
  std::string record;
  uint32_t expected = 0, found = 0;
};

struct ScannedFile {
  FileDigest digest;
  bool torch = false;   // a torch.save container
  bool legacy = false;  // without checksums
  int64_t records_checked = 0;
  std::vector<BadRecord> bad_records;
  std::vector<checkpoint::NamedCallable> callables;  // that its tree names, the known ones left out
  std::optional<checkpoint::Error> damage;           // the container or its pickle cannot be read
};

struct ScanOptions {
  int32_t threads = 0;
  // Files that were opened already, so that they are not parsed twice. May be null.
  const std::vector<checkpoint::TorchFile>* opened = nullptr;
  bool digests_only = false;  // no containers, no CRC
};
// Reads every byte once. Errors: kIo, kNotFound; damage of a container is no error here.
checkpoint::Result<std::vector<ScannedFile>> ScanFiles(const std::vector<ListedFile>& files,
                                                       const ScanOptions& options);

// Damage of a file's content, which law S8 reports, as opposed to what Open says of whole files.
bool IsDamage(checkpoint::ErrorCode code);

}  // namespace certify
