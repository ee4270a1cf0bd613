// `compare` of two opened checkpoints. Internal to certify/. Tested by compare_test.cc.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

#include "certify/subject.h"
#include "checkpoint/status.h"

namespace certify {

// The JSON of Compare. Errors: kUsage (`only` leaves nothing on either side), kChecksumMismatch,
// kLimitExceeded.
checkpoint::Result<nlohmann::ordered_json> CompareSubjects(const Subject& a, const Subject& b,
                                                           int32_t threads);

}  // namespace certify
