// Texts from patterns: Format("{} of {}", 3, "x"). Stands in for fmt, of which the torch wheel
// ships headers that no library here belongs to. Internal to certify/. Tested by format_test.cc.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <variant>

namespace certify {

// A value to be put in a text. Numbers, characters strings and booleans.
class FormatArgument {
 public:
  template <std::signed_integral T>
  FormatArgument(T value) : value_(static_cast<int64_t>(value)) {}  // NOLINT: implicit by design
  template <std::unsigned_integral T>
  FormatArgument(T value) : value_(static_cast<uint64_t>(value)) {}  // NOLINT: implicit by design
  FormatArgument(float value) : value_(value) {}                     // NOLINT: implicit by design
  FormatArgument(double value) : value_(value) {}                    // NOLINT: implicit by design
  FormatArgument(std::string_view value) : value_(value) {}          // NOLINT: implicit by design
  FormatArgument(const std::string& value) : value_(std::string_view(value)) {}  // NOLINT
  FormatArgument(const char* value) : value_(std::string_view(value)) {}         // NOLINT

  // `spec`: "" (numbers in the shortest form that reads back), ".3f", ".6g", "08x".
  std::string Text(std::string_view spec) const;

 private:
  std::variant<int64_t, uint64_t, float, double, std::string_view> value_;
};

// Puts the arguments in place of {}, {:.3f}, {:.6g}, {:08x}, in order. REQUIRES: as many arguments
// as places.
std::string FormatList(std::string_view pattern, std::initializer_list<FormatArgument> arguments);

template <typename... Values>
std::string Format(std::string_view pattern, const Values&... values) {
  return FormatList(pattern, {FormatArgument(values)...});
}

}  // namespace certify
