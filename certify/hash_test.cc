#include "certify/hash.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace certify {
namespace {

TEST(HashTest, Sha256OfPublishedVectors) {
  EXPECT_EQ(HashHex(HashAlgorithm::kSha256, ""),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(HashHex(HashAlgorithm::kSha256, "abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(HashTest, Xxh3OfPublishedVectors) {
  EXPECT_EQ(HashHex(HashAlgorithm::kXxh3_128, ""), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(HashHex(HashAlgorithm::kXxh3_128, "abc"), "06b05ab6733a618578af5f94892f3950");
}

TEST(HashTest, NamesGoBothWays) {
  EXPECT_EQ(HashAlgorithmFromName("sha256"), HashAlgorithm::kSha256);
  EXPECT_EQ(HashAlgorithmFromName("xxh3-128"), HashAlgorithm::kXxh3_128);
  EXPECT_FALSE(HashAlgorithmFromName("md5"));
}

TEST(HashTest, PartsGiveTheSumOfTheWhole) {
  std::vector<std::byte> bytes(100000);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 256);
  RunningXxh3 running;
  EXPECT_EQ(running.Hex(), HashHex(HashAlgorithm::kXxh3_128, std::string_view()));
  const std::span<const std::byte> all(bytes);
  for (const auto& [begin, count] : {std::pair<size_t, size_t>{0, 1}, {1, 70000}, {70001, 29999}})
    running.Add(all.subspan(begin, count));
  EXPECT_EQ(running.Hex(), HashHex(HashAlgorithm::kXxh3_128, all));
}

}  // namespace
}  // namespace certify
