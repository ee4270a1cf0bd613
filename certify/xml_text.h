// Text inside XML and HTML. Internal to certify/. Tested by junit_test.cc.
#pragma once

#include <string>
#include <string_view>

namespace certify {

// Escapes & < > " ' and replaces what XML 1.0 cannot hold: control characters by '?', bytes that
// are no UTF-8 by U+FFFD.
std::string EscapeXml(std::string_view text);

}  // namespace certify
