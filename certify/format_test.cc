#include "certify/format.h"

#include <gtest/gtest.h>

#include <string>

namespace certify {
namespace {

TEST(FormatTest, PutsArgumentsInOrder) {
  EXPECT_EQ(Format("{} of {}: {}", 3, std::string("x"), "y"), "3 of x: y");
  EXPECT_EQ(Format("no place"), "no place");
  EXPECT_EQ(Format("{}", uint64_t{18446744073709551615u}), "18446744073709551615");
  EXPECT_EQ(Format("{}", int64_t{-5}), "-5");
}

TEST(FormatTest, NumbersAreShortestUnlessAsked) {
  EXPECT_EQ(Format("{} {}", 0.1, 0.1f), "0.1 0.1");
  EXPECT_EQ(Format("{:.1f} {:.3f}", 12.34, -0.5), "12.3 -0.500");
  EXPECT_EQ(Format("{:.6g}", 4096.0), "4096");
  EXPECT_EQ(Format("{:08x} {:02x}", uint32_t{0x1234}, static_cast<unsigned char>(255)),
            "00001234 ff");
}

TEST(FormatDeathTest, PlacesAndArgumentsMustFit) {
  EXPECT_DEATH(Format("{}"), "CHECK");
  EXPECT_DEATH(Format("x", 1), "CHECK");
}

}  // namespace
}  // namespace certify
