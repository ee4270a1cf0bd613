#include "checkpoint/status.h"

namespace checkpoint {

std::string_view ErrorCodeName(ErrorCode code) {
  switch (code) {
    case ErrorCode::kUsage:
      return "Usage";
    case ErrorCode::kNotFound:
      return "NotFound";
    case ErrorCode::kNotACheckpoint:
      return "NotACheckpoint";
    case ErrorCode::kIo:
      return "Io";
    case ErrorCode::kTargetExists:
      return "TargetExists";
    case ErrorCode::kTruncated:
      return "Truncated";
    case ErrorCode::kMalformedContainer:
      return "MalformedContainer";
    case ErrorCode::kChecksumMismatch:
      return "ChecksumMismatch";
    case ErrorCode::kMalformedPickle:
      return "MalformedPickle";
    case ErrorCode::kLimitExceeded:
      return "LimitExceeded";
    case ErrorCode::kMalformedTensor:
      return "MalformedTensor";
    case ErrorCode::kMalformedRules:
      return "MalformedRules";
    case ErrorCode::kMissingFile:
      return "MissingFile";
    case ErrorCode::kInconsistent:
      return "Inconsistent";
    case ErrorCode::kUnsupported:
      return "Unsupported";
    case ErrorCode::kUnnamedParameter:
      return "UnnamedParameter";
    case ErrorCode::kUndeclared:
      return "Undeclared";
    case ErrorCode::kUnprovedOrder:
      return "UnprovedOrder";
    case ErrorCode::kUnreachableTarget:
      return "UnreachableTarget";
    case ErrorCode::kLossyConversion:
      return "LossyConversion";
  }
  CHECK(false, << "code=" << static_cast<int>(code));
  return "";
}

std::string Error::ToString() const {
  std::string text(ErrorCodeName(code));
  text += ": found " + found + ", expected " + expected;
  if (!where.empty()) text += " (" + where + ")";
  text += ".";
  if (!advice.empty()) text += " " + advice;
  return text;
}

namespace {

// Bytes of the printable UTF-8 character at the start of `text` (all of ASCII counts); 0 where
// there is none. Overlong forms, surrogates and numbers above U+10FFFF are none.
size_t CharacterBytes(std::string_view text) {
  const auto byte = [text](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const size_t count = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < count) return 0;
  for (size_t i = 1; i < count; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  if (first == 0xc2 && byte(1) < 0xa0) return 0;  // controls, U+0080 to U+009F
  if (first == 0xe0 && byte(1) < 0xa0) return 0;
  if (first == 0xed && byte(1) > 0x9f) return 0;
  if (first == 0xf0 && byte(1) < 0x90) return 0;
  if (first == 0xf4 && byte(1) > 0x8f) return 0;
  return count;
}

}  // namespace

std::string Printable(std::string_view text) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  while (!text.empty()) {
    const unsigned char first = static_cast<unsigned char>(text[0]);
    const size_t count = CharacterBytes(text);
    if (count == 0 || first < 32 || first == 127) {
      out += {'\\', 'x', kHex[first >> 4], kHex[first & 15]};
      text.remove_prefix(1);
    } else {
      out += text.substr(0, count);
      text.remove_prefix(count);
    }
  }
  return out;
}

namespace internal {

Error MakePrintable(Error error) {
  for (std::string* text : {&error.found, &error.expected, &error.where, &error.advice}) {
    *text = Printable(*text);
  }
  return error;
}

void CheckFailed(const char* file, int line, const char* condition, const std::string& values) {
  std::cerr << file << ":" << line << ": CHECK failed: " << condition;
  if (!values.empty()) std::cerr << " [" << values << "]";
  std::cerr << "\nThis is a fault of the program, not of its input." << std::endl;
  std::abort();
}

}  // namespace internal
}  // namespace checkpoint
