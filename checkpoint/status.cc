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

namespace internal {

void CheckFailed(const char* file, int line, const char* condition, const std::string& values) {
  std::cerr << file << ":" << line << ": CHECK failed: " << condition;
  if (!values.empty()) std::cerr << " [" << values << "]";
  std::cerr << "\nThis is a fault of the program, not of its input." << std::endl;
  std::abort();
}

}  // namespace internal
}  // namespace checkpoint
