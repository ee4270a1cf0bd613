#include "certify/hash.h"

#define XXH_INLINE_ALL
#include <openssl/evp.h>
#include <xxhash.h>

#include <array>
#include <memory>

#include "certify/format.h"
#include "checkpoint/status.h"

namespace certify {
namespace {

std::string Hex(std::span<const unsigned char> digest) {
  std::string hex;
  for (const unsigned char byte : digest) hex += Format("{:02x}", byte);
  return hex;
}

std::string Xxh3(std::span<const std::byte> bytes) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes.data(), bytes.size()));
  return Hex(canonical.digest);
}

std::string Sha256(std::span<const std::byte> bytes) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int digest_bytes = 0;
  const int done =
      EVP_Digest(bytes.data(), bytes.size(), digest.data(), &digest_bytes, EVP_sha256(), nullptr);
  CHECK(done == 1, << "EVP_Digest of " << bytes.size() << " bytes");
  return Hex(std::span<const unsigned char>(digest.data(), digest_bytes));
}

}  // namespace

std::optional<HashAlgorithm> HashAlgorithmFromName(std::string_view name) {
  for (const HashAlgorithm algorithm : {HashAlgorithm::kXxh3_128, HashAlgorithm::kSha256})
    if (HashAlgorithmName(algorithm) == name) return algorithm;
  return std::nullopt;
}

std::string_view HashAlgorithmName(HashAlgorithm algorithm) {
  return algorithm == HashAlgorithm::kSha256 ? "sha256" : "xxh3-128";
}

std::string HashHex(HashAlgorithm algorithm, std::span<const std::byte> bytes) {
  return algorithm == HashAlgorithm::kSha256 ? Sha256(bytes) : Xxh3(bytes);
}

std::string HashHex(HashAlgorithm algorithm, std::string_view text) {
  return HashHex(algorithm, std::as_bytes(std::span<const char>(text.data(), text.size())));
}

}  // namespace certify
