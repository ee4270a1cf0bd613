// The reshaping core as one call: inventory -> target -> plan -> copy -> rename. Used by cli/,
// gate/ and the tests; certify/ and oracle/ never see it. Tested by reshape_test.cc and
// corpus_reshape_test.cc.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "checkpoint/status.h"
#include "reshape/inventory.h"
#include "reshape/target.h"

namespace reshape {

struct Progress {
  int64_t bytes_done = 0, bytes_total = 0;
};

struct ReshapeOptions {
  ReadOptions read;
  TargetSpec target;
  bool dry_run = false;                           // plan and check everything, write nothing
  bool check_sums = true;                         // CRC-32 of every source record; no dry run does
  bool flush = true;                              // fsync files and folders before the name appears
  int32_t threads = 0;                            // 0: one per core
  std::function<void(const Progress&)> progress;  // called from one thread at a time
};

struct ReshapeReport {
  Topology source_topology, target_topology;
  std::string step_folder_name;  // tag in the target
  int64_t files = 0, bytes = 0, tensors = 0, copies = 0;
  bool sums_checked = false;         // of the source
  int64_t files_continued = 0;       // finished by an earlier call that was interrupted
  int64_t peak_bytes_estimate = 0;   // anonymous memory besides the object trees and the plan
  int64_t anonymous_bytes_peak = 0;  // measured (memory_use.h), object trees and plan included
  std::vector<std::string> paths;    // files of the target, relative to it
  std::vector<Notice> notices;       // of the inventory and of the target
};

// Writes `destination` (a run folder, which must not exist) or, with dry_run, only says what it
// would do. Interrupted: no target appears; `destination` + ".partial" is left, and the same call
// takes over the files that were finished and flushed, or begins anew. A
// ".partial" that holds anything but our own files is left alone: kTargetExists. Errors: as
// ReadInventory and LayOutTarget, kTargetExists, kIo, kLossyConversion, kInconsistent (the source
// changed meanwhile), kChecksumMismatch.
checkpoint::Result<ReshapeReport> Reshape(const std::filesystem::path& source,
                                          const std::filesystem::path& destination,
                                          const ReshapeOptions& options);

}  // namespace reshape
