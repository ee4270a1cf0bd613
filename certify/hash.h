// The two digest algorithms over bytes in memory. Internal to certify/. Tested by hash_test.cc with
// published vectors.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace certify {

enum class HashAlgorithm { kXxh3_128, kSha256 };

// "xxh3-128", "sha256".
std::optional<HashAlgorithm> HashAlgorithmFromName(std::string_view name);
std::string_view HashAlgorithmName(HashAlgorithm algorithm);
// Lower-case hexadecimal digits; XXH3 in its canonical (big-endian) form.
std::string HashHex(HashAlgorithm algorithm, std::span<const std::byte> bytes);
std::string HashHex(HashAlgorithm algorithm, std::string_view text);

// XXH3-128 of bytes that come in parts.
class RunningXxh3 {
 public:
  RunningXxh3();
  ~RunningXxh3();
  RunningXxh3(const RunningXxh3&) = delete;
  RunningXxh3& operator=(const RunningXxh3&) = delete;

  void Add(std::span<const std::byte> bytes);
  std::string Hex() const;

 private:
  void* state_;
};

}  // namespace certify
