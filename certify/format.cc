#include "certify/format.h"

#include <array>
#include <charconv>
#include <type_traits>

#include "checkpoint/status.h"

namespace certify {
namespace {

// Longest number: a double in fixed form has 309 digits before the point.
constexpr size_t kNumberCharactersMax = 400;

// ".3f" and ".6g": digits behind the point, and the form.
template <typename Float>
std::string FloatText(Float value, std::string_view spec) {
  std::array<char, kNumberCharactersMax> text{};
  char* end = text.data() + text.size();
  if (spec.empty()) return {text.data(), std::to_chars(text.data(), end, value).ptr};
  int digits = 0;
  std::from_chars(spec.data() + 1, spec.data() + spec.size() - 1, digits);
  const auto form = spec.back() == 'f' ? std::chars_format::fixed : std::chars_format::general;
  return {text.data(), std::to_chars(text.data(), end, value, form, digits).ptr};
}

// "08x": hexadecimal with leading zeros.
template <typename Integer>
std::string IntegerText(Integer value, std::string_view spec) {
  std::array<char, kNumberCharactersMax> text{};
  char* end = text.data() + text.size();
  if (spec.empty()) return {text.data(), std::to_chars(text.data(), end, value).ptr};
  size_t width = 0;
  std::from_chars(spec.data(), spec.data() + spec.size() - 1, width);
  const std::string hex(text.data(), std::to_chars(text.data(), end, value, 16).ptr);
  return hex.size() < width ? std::string(width - hex.size(), '0') + hex : hex;
}

}  // namespace

std::string FormatArgument::Text(std::string_view spec) const {
  return std::visit(
      [&](const auto& value) -> std::string {
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, std::string_view>) {
          return std::string(value);
        } else if constexpr (std::is_floating_point_v<T>) {
          return FloatText(value, spec);
        } else {
          return IntegerText(value, spec);
        }
      },
      value_);
}

std::string FormatList(std::string_view pattern, std::initializer_list<FormatArgument> arguments) {
  std::string text;
  const FormatArgument* next = arguments.begin();
  for (size_t at = 0; at < pattern.size();) {
    const size_t open = pattern.find('{', at);
    if (open == std::string_view::npos) {
      text += pattern.substr(at);
      break;
    }
    const size_t close = pattern.find('}', open);
    CHECK(close != std::string_view::npos, << pattern);
    CHECK(next != arguments.end(), << pattern);
    text += pattern.substr(at, open - at);
    const std::string_view inside = pattern.substr(open + 1, close - open - 1);
    text += next->Text(inside.empty() ? inside : inside.substr(1));
    ++next;
    at = close + 1;
  }
  CHECK(next == arguments.end(), << pattern);
  return text;
}

}  // namespace certify
