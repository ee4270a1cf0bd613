// Upper bounds that every loop over file content obeys. A number read from a file is compared with
// these before use; above the bound the reader answers ErrorCode::kLimitExceeded. Real files stay
// far below each of them.
#pragma once

#include <cstdint>

namespace checkpoint {

inline constexpr int64_t kZipRecordsMax = 4'000'000;
inline constexpr int64_t kRecordNameBytesMax = 4096;
inline constexpr int64_t kPickleBytesMax = 512LL << 20;
inline constexpr int64_t kPickleDepthMax = 200;  // nesting of containers; real trees stay below 20
inline constexpr int64_t kPickleNodesMax = 4'000'000;
inline constexpr int64_t kPickleMemoMax = 4'000'000;
// Objects that wait on the stack. Python's pickler leaves at most 1000 for each open list or dict;
// a tuple waits as a whole. Where no mark is open, each level of nesting leaves at most two.
inline constexpr int64_t kPickleStackMax = 1'000'000;
inline constexpr int64_t kPickleUnmarkedMax = 2 * kPickleDepthMax;
inline constexpr int64_t kStringBytesMax = 64LL << 20;
inline constexpr int64_t kTensorDimensionsMax = 64;
inline constexpr int64_t kTensorNumelMax = 1LL << 48;
inline constexpr int64_t kRanksMax = 1'000'000;
inline constexpr int64_t kFilesMax = 8'000'000;
inline constexpr int64_t kRuleFileBytesMax = 4LL << 20;
inline constexpr int64_t kPatternBytesMax = 1024;

}  // namespace checkpoint
