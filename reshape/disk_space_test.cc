#include "reshape/disk_space.h"

#include <gtest/gtest.h>

namespace reshape {
namespace {

TEST(DiskSpaceTest, MoreThanIsFreeIsRefusedWithBothFigures) {
  constexpr int64_t kTooMuch = int64_t{1} << 60;
  const auto status = CheckDiskSpace("/tmp", kTooMuch);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, checkpoint::ErrorCode::kIo);
  EXPECT_TRUE(status.error().found.ends_with(" bytes free")) << status.error().found;
  EXPECT_TRUE(status.error().expected.starts_with("1152921504606846976 bytes"));
  EXPECT_EQ(status.error().where, "/tmp");
}

TEST(DiskSpaceTest, FolderThatIsNotThereYetCountsAsTheOneAboveIt) {
  EXPECT_TRUE(CheckDiskSpace("/tmp/no_such_folder/nor_this", 1).ok());
  EXPECT_FALSE(CheckDiskSpace("/tmp/no_such_folder/nor_this", int64_t{1} << 60).ok());
  EXPECT_FALSE(CheckDiskSpace("relative_no_such_folder", int64_t{1} << 60).ok());
}

}  // namespace
}  // namespace reshape
