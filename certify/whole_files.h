// What has to be known of the files of a checkpoint before a number is made of what they hold: that
// nothing is missing, and that every record has the checksum that was written. Internal to
// certify/. Tested by whole_files_test.cc.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "certify/subject.h"
#include "checkpoint/status.h"

namespace certify {

// Compares the CRC-32 of every record of every opened file. Errors: kChecksumMismatch.
checkpoint::Status CheckRecordSums(const Subject& subject, int32_t threads);

// Something to be told beside a digest or a comparison.
struct WholeNotice {
  std::string kind, text;
  std::vector<std::string> names;
};
// Files whose content no sum proves: legacy containers, and zips saved without sums. Empty where
// there is none.
std::vector<WholeNotice> UnprovedFiles(const Subject& subject);

// What a whole checkpoint of this layout holds and this one does not: faults of law S1, and states
// that other trainable tensors have. A checkpoint that has no optimizer state at all and misses no
// file lacks nothing. Empty: complete.
std::vector<WholeNotice> WhatIsMissing(const Subject& subject);

// Over how many ranks the rows of fused QKV were dealt out: TP, and 1 for a universal folder, which
// holds whole tensors.
int32_t QkvShards(const oracle::Summary& summary);

}  // namespace certify
