#include <fmt/format.h>

#include <array>
#include <utility>

#include "checkpoint/limits.h"
#include "checkpoint/pickle.h"
#include "checkpoint/pickle_machine.h"
#include "checkpoint/pickle_opcodes.h"
#include "checkpoint/pickle_tree_check.h"

namespace checkpoint {

struct PickleMachine::Table {
  struct Entry {
    std::string_view name;  // empty: Python does not know this opcode either
    Step step = nullptr;    // null: refused
  };
  std::array<Entry, 256> entries;

  Table() {
    using namespace opcode;  // NOLINT: the one place where all of them are named
    using M = PickleMachine;
    for (const RefusedOpcode& refused : kRefused) entries[refused.code].name = refused.name;
    const std::pair<uint8_t, Entry> known[] = {
        {kMark, {"MARK", &M::StepMark}},
        {kStop, {"STOP", nullptr}},
        {kPop, {"POP", &M::StepPop}},
        {kPopMark, {"POP_MARK", &M::StepPopMark}},
        {kDup, {"DUP", &M::StepDup}},
        {kBinFloat, {"BINFLOAT", &M::StepBinFloat}},
        {kBinInt, {"BININT", &M::StepBinInt}},
        {kBinInt1, {"BININT1", &M::StepBinInt1}},
        {kBinInt2, {"BININT2", &M::StepBinInt2}},
        {kNone, {"NONE", &M::StepNone}},
        {kBinPersId, {"BINPERSID", &M::StepBinPersId}},
        {kReduce, {"REDUCE", &M::StepReduce}},
        {kBinString, {"BINSTRING", &M::StepBinString}},
        {kShortBinString, {"SHORT_BINSTRING", &M::StepShortBinString}},
        {kBinUnicode, {"BINUNICODE", &M::StepBinUnicode}},
        {kAppend, {"APPEND", &M::StepAppend}},
        {kBuild, {"BUILD", &M::StepBuild}},
        {kGlobal, {"GLOBAL", &M::StepGlobal}},
        {kDict, {"DICT", &M::StepDict}},
        {kAppends, {"APPENDS", &M::StepAppends}},
        {kBinGet, {"BINGET", &M::StepBinGet}},
        {kLongBinGet, {"LONG_BINGET", &M::StepLongBinGet}},
        {kList, {"LIST", &M::StepList}},
        {kBinPut, {"BINPUT", &M::StepBinPut}},
        {kLongBinPut, {"LONG_BINPUT", &M::StepLongBinPut}},
        {kSetItem, {"SETITEM", &M::StepSetItem}},
        {kTuple, {"TUPLE", &M::StepTuple}},
        {kSetItems, {"SETITEMS", &M::StepSetItems}},
        {kEmptyDict, {"EMPTY_DICT", &M::StepEmptyDict}},
        {kEmptyList, {"EMPTY_LIST", &M::StepEmptyList}},
        {kEmptyTuple, {"EMPTY_TUPLE", &M::StepEmptyTuple}},
        {kProto, {"PROTO", &M::StepProto}},
        {kNewObj, {"NEWOBJ", &M::StepNewObj}},
        {kTuple1, {"TUPLE1", &M::StepTuple1}},
        {kTuple2, {"TUPLE2", &M::StepTuple2}},
        {kTuple3, {"TUPLE3", &M::StepTuple3}},
        {kNewTrue, {"NEWTRUE", &M::StepTrue}},
        {kNewFalse, {"NEWFALSE", &M::StepFalse}},
        {kLong1, {"LONG1", &M::StepLong1}},
        {kLong4, {"LONG4", &M::StepLong4}},
        {kBinBytes, {"BINBYTES", &M::StepBinBytes}},
        {kShortBinBytes, {"SHORT_BINBYTES", &M::StepShortBinBytes}},
        {kShortBinUnicode, {"SHORT_BINUNICODE", &M::StepShortBinUnicode}},
        {kBinUnicode8, {"BINUNICODE8", &M::StepBinUnicode8}},
        {kBinBytes8, {"BINBYTES8", &M::StepBinBytes8}},
        {kEmptySet, {"EMPTY_SET", &M::StepEmptySet}},
        {kAddItems, {"ADDITEMS", &M::StepAddItems}},
        {kFrozenSet, {"FROZENSET", &M::StepFrozenSet}},
        {kStackGlobal, {"STACK_GLOBAL", &M::StepStackGlobal}},
        {kMemoize, {"MEMOIZE", &M::StepMemoize}},
        {kFrame, {"FRAME", &M::StepFrame}},
    };
    for (const auto& [code, entry] : known) entries[code] = entry;
  }
};

const PickleMachine::Table& PickleMachine::Steps() {
  static const Table table;
  return table;
}

PickleMachine::~PickleMachine() {
  // `containers_` holds a reference to each of them: no destruction goes deeper than one level.
  for (Value& container : containers_) container->content = NoneNode{};
}

std::string PickleMachine::Here() const {
  return fmt::format("{}, opcode {} at byte {}", where_, opcode_name_, opcode_position_);
}

Error PickleMachine::Malformed(std::string found, std::string expected) const {
  return Error{ErrorCode::kMalformedPickle, std::move(found), std::move(expected), Here(),
               "The file is damaged or was not written by torch.save; fetch it again."};
}

Error PickleMachine::Limit(std::string found, std::string expected) const {
  return Error{ErrorCode::kLimitExceeded, std::move(found), std::move(expected), Here(),
               "Real checkpoints stay far below this limit; the file is damaged or hostile."};
}

Result<std::string_view> PickleMachine::Take(uint64_t count) {
  const size_t left = bytes_.size() - position_;
  if (count > left) {
    return Error{ErrorCode::kTruncated, fmt::format("{} bytes left in the pickle", left),
                 fmt::format("{} bytes", count), Here(),
                 "The file was cut short; fetch it again from where it was written."};
  }
  const std::string_view taken(reinterpret_cast<const char*>(bytes_.data()) + position_, count);
  position_ += count;
  return taken;
}

Result<uint64_t> PickleMachine::TakeUnsigned(int width) {
  CK_TRY(const std::string_view text, Take(static_cast<uint64_t>(width)));
  uint64_t number = 0;
  for (size_t i = text.size(); i > 0; --i) {
    number = number << 8 | static_cast<unsigned char>(text[i - 1]);
  }
  return number;
}

Result<std::string_view> PickleMachine::TakeLine() {
  const std::string_view rest(reinterpret_cast<const char*>(bytes_.data()) + position_,
                              bytes_.size() - position_);
  const size_t end = rest.find('\n');
  if (end == std::string_view::npos) {
    return Error{ErrorCode::kTruncated, "a line without an end", "a newline", Here(),
                 "The file was cut short; fetch it again from where it was written."};
  }
  CK_DO(CheckByteCount(end, "a line"));
  position_ += end + 1;
  return rest.substr(0, end);
}

Status PickleMachine::Push(Value value) {
  // Pushes bound nodes, edges and the stack alike: each node and each edge of the tree was pushed
  // once.
  if (++pushes_ > kPickleNodesMax) {
    return Limit(fmt::format("more than {} objects", kPickleNodesMax),
                 fmt::format("at most {}", kPickleNodesMax));
  }
  const int64_t waiting_max = marks_.empty() ? kPickleUnmarkedMax : kPickleStackMax;
  if (static_cast<int64_t>(stack_.size()) >= waiting_max) {
    return Limit(marks_.empty() ? fmt::format("objects nested more than {} deep", kPickleDepthMax)
                                : fmt::format("more than {} objects on the stack", waiting_max),
                 fmt::format("at most {}", marks_.empty() ? kPickleDepthMax : waiting_max));
  }
  stack_.push_back(std::move(value));
  return Done{};
}

Status PickleMachine::PushNew(Node node) { return Push(std::make_shared<Node>(std::move(node))); }

Status PickleMachine::PushContainer(Node node) {
  containers_.push_back(std::make_shared<Node>(std::move(node)));
  return Push(containers_.back());
}

Result<Value> PickleMachine::Pop() {
  if (stack_.size() <= Fence()) return Malformed("an empty stack", "an object on the stack");
  Value value = std::move(stack_.back());
  stack_.pop_back();
  return value;
}

Result<Value> PickleMachine::Top() const {
  if (stack_.size() <= Fence()) return Malformed("an empty stack", "an object on the stack");
  return stack_.back();
}

Result<std::vector<Value>> PickleMachine::PopToMark() {
  if (marks_.empty()) return Malformed("no mark on the stack", "a mark");
  const auto begin = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
  std::vector<Value> items(std::make_move_iterator(begin), std::make_move_iterator(stack_.end()));
  stack_.erase(begin, stack_.end());
  marks_.pop_back();
  return items;
}

Status PickleMachine::Dispatch(uint8_t code) {
  const Table::Entry& entry = Steps().entries[code];
  opcode_name_ = entry.name.empty() ? "(unknown)" : entry.name;
  if (entry.step != nullptr) return (this->*entry.step)();
  if (code == opcode::kStop) {
    stopped_ = true;
    return Done{};
  }
  if (entry.name.empty()) {
    return Malformed(fmt::format("byte 0x{:02x}, which is no opcode", code), "a pickle opcode");
  }
  return Malformed(fmt::format("opcode {}, which is refused", entry.name),
                   "the opcodes that checkpoint writers use");
}

Result<PickleResult> PickleMachine::Run() {
  if (static_cast<int64_t>(bytes_.size()) > kPickleBytesMax) {
    // A legacy file hands over everything behind the pickle too: what counts is where STOP is.
    bytes_ = bytes_.first(static_cast<size_t>(kPickleBytesMax));
  }
  while (!stopped_) {
    opcode_position_ = position_;
    if (static_cast<int64_t>(position_) >= kPickleBytesMax) {
      return Limit(fmt::format("no STOP in {} bytes", kPickleBytesMax), "a smaller pickle");
    }
    opcode_name_ = "(next)";
    CK_TRY(const uint64_t code, TakeUnsigned(1));
    CK_DO(Dispatch(static_cast<uint8_t>(code)));
  }
  return Finish();
}

Result<PickleResult> PickleMachine::Finish() {
  CK_TRY(Value root, Pop());
  if (!stack_.empty() || !marks_.empty()) {
    return Malformed(fmt::format("{} more objects on the stack", stack_.size()),
                     "one object at the end");
  }
  NodeHeights heights;
  CK_DO(CheckTree(root, kPickleDepthMax, where_, &heights));
  std::erase_if(containers_, [&](const Value& value) { return heights.contains(value.get()); });
  return PickleResult{.root = std::move(root), .bytes_read = static_cast<int64_t>(position_)};
}

Result<PickleResult> ReadPickle(std::span<const std::byte> bytes, const StorageResolver& resolve,
                                const std::string& where) {
  PickleMachine machine(bytes, resolve, where);
  return machine.Run();
}

}  // namespace checkpoint
