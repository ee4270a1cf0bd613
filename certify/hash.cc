#include "certify/hash.h"

#include <openssl/evp.h>
#ifdef __x86_64__
#include <xxh_x86dispatch.h>  // picks the widest vectors that the processor has
#else
#include <xxhash.h>
#endif

#include <array>
#include <new>

#include "certify/format.h"
#include "checkpoint/status.h"

namespace certify {
namespace {

std::string Hex(std::span<const unsigned char> digest) {
  std::string hex;
  for (const unsigned char byte : digest) hex += Format("{:02x}", byte);
  return hex;
}

std::string Hex(XXH128_hash_t hash) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, hash);
  return Hex(canonical.digest);
}

std::string Xxh3(std::span<const std::byte> bytes) {
  return Hex(XXH3_128bits(bytes.data(), bytes.size()));
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

RunningXxh3::RunningXxh3() : state_(XXH3_createState()) {
  if (state_ == nullptr) throw std::bad_alloc();
  XXH3_128bits_reset(static_cast<XXH3_state_t*>(state_));
}

RunningXxh3::~RunningXxh3() { XXH3_freeState(static_cast<XXH3_state_t*>(state_)); }

void RunningXxh3::Add(std::span<const std::byte> bytes) {
  XXH3_128bits_update(static_cast<XXH3_state_t*>(state_), bytes.data(), bytes.size());
}

std::string RunningXxh3::Hex() const {
  return certify::Hex(XXH3_128bits_digest(static_cast<const XXH3_state_t*>(state_)));
}

}  // namespace certify
