// The zip structures that torch.save uses: sizes, signatures, little-endian numbers. Shared by
// reader and writer of this room, which share nothing else. Format: docs/format/container.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

namespace checkpoint::zip {

inline constexpr uint32_t kLocalSignature = 0x04034b50;
inline constexpr uint32_t kDescriptorSignature = 0x08074b50;
inline constexpr uint32_t kCentralSignature = 0x02014b50;
inline constexpr uint32_t kEndSignature = 0x06054b50;
inline constexpr uint32_t kEnd64Signature = 0x06064b50;
inline constexpr uint32_t kLocatorSignature = 0x07064b50;

inline constexpr int64_t kLocalBytes = 30;    // without name and extra field
inline constexpr int64_t kCentralBytes = 46;  // without name, extra field and comment
inline constexpr int64_t kEndBytes = 22;      // without comment
inline constexpr int64_t kEnd64Bytes = 56;
inline constexpr int64_t kLocatorBytes = 20;
inline constexpr int64_t kDescriptorBytes = 16;    // signature, CRC, two 32-bit sizes
inline constexpr int64_t kDescriptor64Bytes = 24;  // signature, CRC, two 64-bit sizes

inline constexpr uint16_t kFlagEncrypted = 1 << 0;
inline constexpr uint16_t kFlagDescriptor = 1 << 3;
inline constexpr uint16_t kFlagUtf8 = 1 << 11;
inline constexpr uint16_t kExtraZip64 = 0x0001;
inline constexpr uint16_t kSaturated16 = 0xffff;
inline constexpr uint32_t kSaturated32 = 0xffffffff;

// torch.save pads the local extra field so that payloads start at multiples of this.
inline constexpr int64_t kPayloadAlignment = 64;

// Numbers at an address that the caller has bounded. Zip and this program's machines are
// little-endian.
template <typename Number>
Number Load(const std::byte* at) {
  Number number;
  std::memcpy(&number, at, sizeof number);
  return number;
}

template <typename Number>
void Append(std::string& out, Number number) {
  out.append(reinterpret_cast<const char*>(&number), sizeof number);
}

}  // namespace checkpoint::zip
