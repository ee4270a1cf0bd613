// What each opcode does to the machine: constants, stack, memo. Those that make containers and
// instances are in pickle_container_steps.cc.
#include <fmt/format.h>

#include <bit>

#include "checkpoint/limits.h"
#include "checkpoint/pickle_machine.h"
#include "checkpoint/walk.h"

namespace checkpoint {
namespace {

// Drops bytes that only repeat the sign, as Python's encoder does.
std::string_view MinimalTwosComplement(std::string_view bytes) {
  const auto negative = [](char byte) { return (static_cast<unsigned char>(byte) & 0x80) != 0; };
  while (bytes.size() > 1) {
    const auto last = static_cast<unsigned char>(bytes.back());
    const bool below_negative = negative(bytes[bytes.size() - 2]);
    if (!(last == 0x00 && !below_negative) && !(last == 0xff && below_negative)) break;
    bytes.remove_suffix(1);
  }
  return bytes;
}

}  // namespace

Status PickleMachine::CheckByteCount(uint64_t count, std::string_view what) const {
  if (count > static_cast<uint64_t>(kStringBytesMax)) {
    return Limit(fmt::format("{} of {} bytes", what, count),
                 fmt::format("at most {} bytes", kStringBytesMax));
  }
  return Done{};
}

Status PickleMachine::PushText(uint64_t count) {
  CK_DO(CheckByteCount(count, "a string"));
  CK_TRY(const std::string_view text, Take(count));
  if (!IsUtf8WithSurrogates(text.data(), text.size())) {
    return Malformed("a string that is not UTF-8", "UTF-8");
  }
  return PushNew({StringNode{std::string(text)}});
}

// Python 2 strings are bytes; torch.load reads those of old checkpoints as text, and Latin-1 loses
// none of them.
Status PickleMachine::PushLatin1(uint64_t count) {
  CK_DO(CheckByteCount(count, "a string"));
  CK_TRY(const std::string_view latin1, Take(count));
  std::string text;
  text.reserve(latin1.size());
  for (const char symbol : latin1) {
    const auto code = static_cast<unsigned char>(symbol);
    if (code < 0x80) {
      text.push_back(symbol);
    } else {
      text.push_back(static_cast<char>(0xc0 | code >> 6));
      text.push_back(static_cast<char>(0x80 | (code & 0x3f)));
    }
  }
  return PushNew({StringNode{std::move(text)}});
}

Status PickleMachine::PushBytes(uint64_t count) {
  CK_DO(CheckByteCount(count, "a bytes object"));
  CK_TRY(const std::string_view bytes, Take(count));
  return PushNew({BytesNode{std::string(bytes)}});
}

Status PickleMachine::PushLong(uint64_t count) {
  CK_DO(CheckByteCount(count, "an integer"));
  CK_TRY(const std::string_view taken, Take(count));
  const std::string_view bytes = MinimalTwosComplement(taken);
  if (bytes.size() > 8) return PushNew({BigIntNode{std::string(bytes)}});
  const bool negative = !bytes.empty() && (static_cast<unsigned char>(bytes.back()) & 0x80) != 0;
  uint64_t number = negative ? ~uint64_t{0} : 0;
  for (size_t i = bytes.size(); i > 0; --i) {
    number = number << 8 | static_cast<unsigned char>(bytes[i - 1]);
  }
  return PushNew({static_cast<int64_t>(number)});
}

Status PickleMachine::StepProto() {
  CK_TRY(const uint64_t protocol, TakeUnsigned(1));
  if (protocol > 5) return Malformed(fmt::format("protocol {}", protocol), "protocol 0 to 5");
  return Done{};
}

Status PickleMachine::StepFrame() {
  CK_TRY(const uint64_t count, TakeUnsigned(8));
  if (count > bytes_.size() - position_) {
    return Error{ErrorCode::kTruncated, fmt::format("{} bytes left", bytes_.size() - position_),
                 fmt::format("a frame of {} bytes", count), Here(),
                 "The file was cut short; fetch it again from where it was written."};
  }
  return Done{};
}

Status PickleMachine::StepNone() { return PushNew({NoneNode{}}); }
Status PickleMachine::StepTrue() { return PushNew({true}); }
Status PickleMachine::StepFalse() { return PushNew({false}); }

Status PickleMachine::StepBinInt() {
  CK_TRY(const uint64_t number, TakeUnsigned(4));
  return PushNew({static_cast<int64_t>(static_cast<int32_t>(static_cast<uint32_t>(number)))});
}
Status PickleMachine::StepBinInt1() {
  CK_TRY(const uint64_t number, TakeUnsigned(1));
  return PushNew({static_cast<int64_t>(number)});
}
Status PickleMachine::StepBinInt2() {
  CK_TRY(const uint64_t number, TakeUnsigned(2));
  return PushNew({static_cast<int64_t>(number)});
}
Status PickleMachine::StepLong1() {
  CK_TRY(const uint64_t count, TakeUnsigned(1));
  return PushLong(count);
}
Status PickleMachine::StepLong4() {
  CK_TRY(const uint64_t count, TakeUnsigned(4));
  if (count > 0x7fffffff) return Malformed("LONG4 with a negative byte count", "a count from 0");
  return PushLong(count);
}
Status PickleMachine::StepBinFloat() {
  CK_TRY(const std::string_view bytes, Take(8));
  uint64_t bits = 0;
  for (const char byte : bytes) bits = bits << 8 | static_cast<unsigned char>(byte);
  return PushNew({std::bit_cast<double>(bits)});
}
Status PickleMachine::StepBinUnicode() {
  CK_TRY(const uint64_t count, TakeUnsigned(4));
  return PushText(count);
}
Status PickleMachine::StepShortBinUnicode() {
  CK_TRY(const uint64_t count, TakeUnsigned(1));
  return PushText(count);
}
Status PickleMachine::StepBinUnicode8() {
  CK_TRY(const uint64_t count, TakeUnsigned(8));
  return PushText(count);
}
Status PickleMachine::StepBinString() {
  CK_TRY(const uint64_t count, TakeUnsigned(4));
  return PushLatin1(count);
}
Status PickleMachine::StepShortBinString() {
  CK_TRY(const uint64_t count, TakeUnsigned(1));
  return PushLatin1(count);
}
Status PickleMachine::StepBinBytes() {
  CK_TRY(const uint64_t count, TakeUnsigned(4));
  return PushBytes(count);
}
Status PickleMachine::StepShortBinBytes() {
  CK_TRY(const uint64_t count, TakeUnsigned(1));
  return PushBytes(count);
}
Status PickleMachine::StepBinBytes8() {
  CK_TRY(const uint64_t count, TakeUnsigned(8));
  return PushBytes(count);
}

Status PickleMachine::StepMark() {
  if (++pushes_ > kPickleNodesMax) {
    return Limit(fmt::format("more than {} objects and marks", kPickleNodesMax),
                 fmt::format("at most {}", kPickleNodesMax));
  }
  // Behind each open mark waits one more container around all that follows.
  if (static_cast<int64_t>(marks_.size()) >= kPickleDepthMax) {
    return Limit(fmt::format("objects nested more than {} deep", kPickleDepthMax),
                 fmt::format("at most {}", kPickleDepthMax));
  }
  marks_.push_back(stack_.size());
  return Done{};
}

Status PickleMachine::StepPop() {
  if (!marks_.empty() && marks_.back() == stack_.size()) {
    marks_.pop_back();
    return Done{};
  }
  CK_TRY([[maybe_unused]] const Value dropped, Pop());
  return Done{};
}

Status PickleMachine::StepPopMark() {
  CK_TRY([[maybe_unused]] const std::vector<Value> dropped, PopToMark());
  return Done{};
}

Status PickleMachine::StepDup() {
  CK_TRY(Value top, Top());
  return Push(std::move(top));
}

Status PickleMachine::Put(uint64_t index) {
  if (static_cast<int64_t>(memo_.size()) >= kPickleMemoMax ||
      index >= static_cast<uint64_t>(kPickleMemoMax)) {
    return Limit(fmt::format("memo entry {}", index), fmt::format("below {}", kPickleMemoMax));
  }
  CK_TRY(Value top, Top());
  memo_[index] = std::move(top);
  return Done{};
}

Status PickleMachine::Get(uint64_t index) {
  const auto found = memo_.find(index);
  if (found == memo_.end()) {
    return Malformed(fmt::format("memo entry {}, which was never stored", index),
                     "an entry stored before");
  }
  return Push(found->second);
}

Status PickleMachine::StepBinPut() {
  CK_TRY(const uint64_t index, TakeUnsigned(1));
  return Put(index);
}
Status PickleMachine::StepLongBinPut() {
  CK_TRY(const uint64_t index, TakeUnsigned(4));
  return Put(index);
}
Status PickleMachine::StepMemoize() { return Put(memo_.size()); }
Status PickleMachine::StepBinGet() {
  CK_TRY(const uint64_t index, TakeUnsigned(1));
  return Get(index);
}
Status PickleMachine::StepLongBinGet() {
  CK_TRY(const uint64_t index, TakeUnsigned(4));
  return Get(index);
}

}  // namespace checkpoint
