// The stack machine of the pickle reader. Internal: pickle_reader.cc and pickle_opcode_steps.cc
// implement it, ReadPickle is its only user. Every number it reads is bounded (limits.h) before
// use; it imports and calls nothing.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "checkpoint/pickle.h"
#include "checkpoint/status.h"
#include "checkpoint/value.h"

namespace checkpoint {

class PickleMachine {
 public:
  PickleMachine(std::span<const std::byte> bytes, const StorageResolver& resolve,
                const std::string& where)
      : bytes_(bytes), resolve_(resolve), where_(where) {}
  // Empties every container that is not part of a returned tree, so that cycles and deep chains of
  // a malformed pickle neither leak nor overflow the stack when they are destroyed.
  ~PickleMachine();
  PickleMachine(const PickleMachine&) = delete;
  PickleMachine& operator=(const PickleMachine&) = delete;

  Result<PickleResult> Run();

 private:
  using Step = Status (PickleMachine::*)();
  struct Table;
  static const Table& Steps();

  // Bytes of the pickle.
  Result<std::string_view> Take(uint64_t count);
  Result<uint64_t> TakeUnsigned(int width);
  Result<std::string_view> TakeLine();
  // The stack. A mark is a position in it; nothing below the last mark can be popped.
  Status Push(Value value);
  Status PushNew(Node node);
  Status PushContainer(Node node);
  Result<Value> Pop();
  Result<Value> Top() const;
  Result<std::vector<Value>> PopToMark();
  size_t Fence() const { return marks_.empty() ? 0 : marks_.back(); }

  // Constants.
  Status StepProto();
  Status StepFrame();
  Status StepNone();
  Status StepTrue();
  Status StepFalse();
  Status StepBinInt();
  Status StepBinInt1();
  Status StepBinInt2();
  Status StepLong1();
  Status StepLong4();
  Status StepBinFloat();
  Status StepBinUnicode();
  Status StepShortBinUnicode();
  Status StepBinUnicode8();
  Status StepBinString();
  Status StepShortBinString();
  Status StepBinBytes();
  Status StepShortBinBytes();
  Status StepBinBytes8();
  // Stack and memo.
  Status StepMark();
  Status StepPop();
  Status StepPopMark();
  Status StepDup();
  Status StepBinPut();
  Status StepLongBinPut();
  Status StepMemoize();
  Status StepBinGet();
  Status StepLongBinGet();
  // Containers.
  Status StepEmptyTuple();
  Status StepTuple();
  Status StepTuple1();
  Status StepTuple2();
  Status StepTuple3();
  Status StepEmptyList();
  Status StepList();
  Status StepAppend();
  Status StepAppends();
  Status StepEmptyDict();
  Status StepDict();
  Status StepSetItem();
  Status StepSetItems();
  Status StepEmptySet();
  Status StepAddItems();
  Status StepFrozenSet();
  // Classes, instances, storages.
  Status StepGlobal();
  Status StepStackGlobal();
  Status StepReduce();
  Status StepNewObj();
  Status StepBuild();
  Status StepBinPersId();

  Status Dispatch(uint8_t code);
  Status CheckByteCount(uint64_t count, std::string_view what) const;
  Status PushText(uint64_t count);
  Status PushLatin1(uint64_t count);
  Status PushBytes(uint64_t count);
  Status PushLong(uint64_t count);
  Status PushTupleOf(size_t count);
  Status PushObject(ObjectNode::How how);
  Status PushGlobal(std::string_view module, std::string_view name);
  Status AppendTo(const Value& target, std::vector<Value> items);
  Status SetItemsOf(const Value& target, std::vector<Value> keys_and_values);
  Status Put(uint64_t index);
  Status Get(uint64_t index);
  Result<std::vector<std::pair<Value, Value>>> Pairs(std::vector<Value> keys_and_values) const;
  Result<PickleResult> Finish();

  std::string Here() const;
  Error Malformed(std::string found, std::string expected) const;
  Error Limit(std::string found, std::string expected) const;

  std::span<const std::byte> bytes_;
  const StorageResolver& resolve_;
  const std::string& where_;
  size_t position_ = 0;
  size_t opcode_position_ = 0;
  std::string_view opcode_name_ = "(none)";
  bool stopped_ = false;
  int64_t pushes_ = 0;
  std::vector<Value> stack_;
  std::vector<size_t> marks_;
  std::unordered_map<uint64_t, Value> memo_;
  // Every tuple, list, dict, set and object made, in order.
  std::vector<Value> containers_;
};

}  // namespace checkpoint
