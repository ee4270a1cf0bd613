// Errors of the world as values, errors of ours as aborts. Used by every room; tested by
// status_test.cc.
//
// A fault of the world (truncated file, unreachable target) travels as Result<T> holding an Error
// that says what was found, what was expected, where, and what to do. A fault of ours stops the
// program through CHECK, in every build. Input can never reach a CHECK.
#pragma once

#include <cstdlib>
#include <iostream>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace checkpoint {

// Every code is triggered by a test; a code that no input can reach is a CHECK instead.
enum class ErrorCode {
  kUsage,               // flags that contradict each other, unknown values
  kNotFound,            // the path does not exist
  kNotACheckpoint,      // the folder holds nothing we know
  kIo,                  // open, read, write, sync failed: permission, disk full, device error
  kTargetExists,        // a target that exists is never overwritten
  kTruncated,           // a file or record is shorter than its headers say
  kMalformedContainer,  // zip structure: overlapping, missing, duplicate, compressed records; bad
                        // legacy container
  kChecksumMismatch,    // CRC-32 of a record differs from the directory
  kMalformedPickle,     // opcode, stack, memo or type is wrong
  kLimitExceeded,       // a number from a file is above checkpoint/limits.h
  kMalformedTensor,     // a tensor leaves its storage, negative stride, unknown storage type
  kMalformedRules,      // rules or declaration file does not parse
  kMissingFile,         // a rank or layer file that the topology needs is absent
  kInconsistent,        // files contradict each other: topology, shapes, steps, sizes
  kUnsupported,         // named and refused: ZeRO-3, MoE, unknown optimizer state
  kUnnamedParameter,    // no rule names a parameter
  kUndeclared,     // something the files do not say was not declared: QKV order, hyper-parameters,
                   // cuts
  kUnprovedOrder,  // no order of a nameless flat group fits the content
  kUnreachableTarget,  // the framework itself cannot run the target topology
  kLossyConversion,    // a change of type would make weights infinite
};

// The code's name as users and JSON see it: "TargetExists" for kTargetExists.
std::string_view ErrorCodeName(ErrorCode code);

struct Error {
  ErrorCode code;
  std::string found;     // "12 bytes"
  std::string expected;  // "at least 22 bytes (end of central directory)"
  std::string where;     // file, record, tensor, rank; as far as known
  std::string advice;    // what the user can do; may be empty only where nothing can be done

  // "TargetExists: found ..., expected ... (where). advice" on one line.
  std::string ToString() const;
};

// Text that a terminal and JSON can take: control characters and bytes that are no UTF-8 become
// "\x1b". For names that come from files.
std::string Printable(std::string_view text);

namespace internal {
Error MakePrintable(Error error);
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition,
                              const std::string& values);
}  // namespace internal

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : content_(std::move(value)) {}  // NOLINT: implicit by design
  // Every text of the error becomes Printable: parts of it may come from a hostile file.
  Result(Error error)  // NOLINT: implicit by design
      : content_(internal::MakePrintable(std::move(error))) {}

  bool ok() const { return std::holds_alternative<T>(content_); }
  // REQUIRES: ok().
  T& value() & {
    RequireOk();
    return std::get<T>(content_);
  }
  const T& value() const& {
    RequireOk();
    return std::get<T>(content_);
  }
  T&& value() && {
    RequireOk();
    return std::get<T>(std::move(content_));
  }
  // REQUIRES: !ok().
  const Error& error() const { return std::get<Error>(content_); }
  Error& error() { return std::get<Error>(content_); }

 private:
  void RequireOk() const {
    if (!ok()) internal::CheckFailed(__FILE__, __LINE__, "ok()", error().ToString());
  }

  std::variant<T, Error> content_;
};

struct Done {};
using Status = Result<Done>;

}  // namespace checkpoint

#define CK_CONCAT_INNER(a, b) a##b
#define CK_CONCAT(a, b) CK_CONCAT_INNER(a, b)

// CK_TRY(auto header, ReadHeader(file));  declares `header` or returns the Error to the caller.
#define CK_TRY(declaration, expression)                        \
  auto CK_CONCAT(ck_result_, __LINE__) = (expression);         \
  if (!CK_CONCAT(ck_result_, __LINE__).ok())                   \
    return std::move(CK_CONCAT(ck_result_, __LINE__).error()); \
  declaration = std::move(CK_CONCAT(ck_result_, __LINE__)).value()

// CK_DO(WriteHeader(file));  for a Status.
#define CK_DO(expression)                                     \
  do {                                                        \
    auto ck_status = (expression);                            \
    if (!ck_status.ok()) return std::move(ck_status.error()); \
  } while (false)

// CHECK(end <= numel, << "end=" << end << " numel=" << numel);  our own errors, in every build.
#define CHECK(condition, ...)                                                               \
  do {                                                                                      \
    if (!(condition)) {                                                                     \
      std::ostringstream ck_stream;                                                         \
      ck_stream << "" __VA_ARGS__;                                                          \
      ::checkpoint::internal::CheckFailed(__FILE__, __LINE__, #condition, ck_stream.str()); \
    }                                                                                       \
  } while (false)

// For checks dearer than what they guard: on unless the benchmark preset defines SHARDPROOF_FAST.
#ifdef SHARDPROOF_FAST
#define CHECK_SLOW(condition, ...) ((void)0)
#else
#define CHECK_SLOW CHECK
#endif
