#include "certify/xml_text.h"

#include <nlohmann/json.hpp>

namespace certify {

std::string EscapeXml(std::string_view text) {
  // The JSON library's writer knows UTF-8; a round trip replaces invalid bytes.
  const nlohmann::json raw = std::string(text);
  const auto clean = nlohmann::json::parse(
      raw.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace), nullptr, false);
  std::string out;
  for (const char c : clean.get<std::string>()) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      case '\n':
      case '\t':
        out += c;
        break;
      default:
        out += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
    }
  }
  return out;
}

}  // namespace certify
