// Opcodes that make and fill containers, name classes, and describe instances. Nothing is imported
// or called: REDUCE and NEWOBJ only write down what Python would do.
#include <fmt/format.h>

#include <utility>

#include "checkpoint/pickle_machine.h"
#include "checkpoint/walk.h"

namespace checkpoint {

Status PickleMachine::PushTupleOf(size_t count) {
  if (stack_.size() - Fence() < count) {
    return Malformed(fmt::format("{} objects on the stack", stack_.size() - Fence()),
                     fmt::format("{} for a tuple", count));
  }
  const auto begin = stack_.end() - static_cast<std::ptrdiff_t>(count);
  TupleNode tuple{{std::make_move_iterator(begin), std::make_move_iterator(stack_.end())}};
  stack_.erase(begin, stack_.end());
  return PushContainer({std::move(tuple)});
}

Status PickleMachine::StepEmptyTuple() { return PushTupleOf(0); }
Status PickleMachine::StepTuple1() { return PushTupleOf(1); }
Status PickleMachine::StepTuple2() { return PushTupleOf(2); }
Status PickleMachine::StepTuple3() { return PushTupleOf(3); }
Status PickleMachine::StepTuple() {
  CK_TRY(std::vector<Value> items, PopToMark());
  return PushContainer({TupleNode{std::move(items)}});
}

Status PickleMachine::StepEmptyList() { return PushContainer({ListNode{}}); }
Status PickleMachine::StepList() {
  CK_TRY(std::vector<Value> items, PopToMark());
  return PushContainer({ListNode{std::move(items)}});
}

Status PickleMachine::AppendTo(const Value& target, std::vector<Value> items) {
  std::vector<Value>* list = nullptr;
  if (auto* node = std::get_if<ListNode>(&target->content)) list = &node->items;
  if (auto* node = std::get_if<ObjectNode>(&target->content)) {
    // The writer puts list items first, then dict items, then the state: another order could not be
    // written back.
    if (node->state || !node->items.empty()) {
      return Malformed("list items of an instance after its dict items or state",
                       "list items first");
    }
    list = &node->appended;
  }
  if (list == nullptr) return Malformed("items appended to what is no list", "a list");
  list->insert(list->end(), std::make_move_iterator(items.begin()),
               std::make_move_iterator(items.end()));
  return Done{};
}

Status PickleMachine::StepAppend() {
  CK_TRY(Value item, Pop());
  CK_TRY(const Value target, Top());
  std::vector<Value> items;
  items.push_back(std::move(item));
  return AppendTo(target, std::move(items));
}

Status PickleMachine::StepAppends() {
  CK_TRY(std::vector<Value> items, PopToMark());
  CK_TRY(const Value target, Top());
  return AppendTo(target, std::move(items));
}

Result<std::vector<std::pair<Value, Value>>> PickleMachine::Pairs(
    std::vector<Value> keys_and_values) const {
  if (keys_and_values.size() % 2 != 0) {
    return Malformed(fmt::format("{} objects for a dict", keys_and_values.size()),
                     "a key and a value each");
  }
  std::vector<std::pair<Value, Value>> pairs;
  pairs.reserve(keys_and_values.size() / 2);
  for (size_t i = 0; i < keys_and_values.size(); i += 2) {
    pairs.emplace_back(std::move(keys_and_values[i]), std::move(keys_and_values[i + 1]));
  }
  return pairs;
}

Status PickleMachine::SetItemsOf(const Value& target, std::vector<Value> keys_and_values) {
  std::vector<std::pair<Value, Value>>* items = nullptr;
  if (auto* node = std::get_if<DictNode>(&target->content)) items = &node->items;
  if (auto* node = std::get_if<ObjectNode>(&target->content)) {
    if (node->state) return Malformed("dict items of an instance after its state", "items first");
    items = &node->items;
  }
  if (items == nullptr) return Malformed("items set on what is no dict", "a dict");
  CK_TRY(auto pairs, Pairs(std::move(keys_and_values)));
  items->insert(items->end(), std::make_move_iterator(pairs.begin()),
                std::make_move_iterator(pairs.end()));
  return Done{};
}

Status PickleMachine::StepEmptyDict() { return PushContainer({DictNode{}}); }
Status PickleMachine::StepDict() {
  CK_TRY(std::vector<Value> items, PopToMark());
  CK_TRY(auto pairs, Pairs(std::move(items)));
  return PushContainer({DictNode{std::move(pairs)}});
}

Status PickleMachine::StepSetItem() {
  CK_TRY(Value value, Pop());
  CK_TRY(Value key, Pop());
  CK_TRY(const Value target, Top());
  std::vector<Value> pair;
  pair.push_back(std::move(key));
  pair.push_back(std::move(value));
  return SetItemsOf(target, std::move(pair));
}

Status PickleMachine::StepSetItems() {
  CK_TRY(std::vector<Value> items, PopToMark());
  CK_TRY(const Value target, Top());
  return SetItemsOf(target, std::move(items));
}

Status PickleMachine::StepEmptySet() { return PushContainer({SetNode{}}); }
Status PickleMachine::StepFrozenSet() {
  CK_TRY(std::vector<Value> items, PopToMark());
  return PushContainer({SetNode{.items = std::move(items), .frozen = true}});
}

Status PickleMachine::StepAddItems() {
  CK_TRY(std::vector<Value> items, PopToMark());
  CK_TRY(const Value target, Top());
  auto* set = std::get_if<SetNode>(&target->content);
  if (set == nullptr || set->frozen) return Malformed("items added to what is no set", "a set");
  set->items.insert(set->items.end(), std::make_move_iterator(items.begin()),
                    std::make_move_iterator(items.end()));
  return Done{};
}

Status PickleMachine::PushGlobal(std::string_view module, std::string_view name) {
  const bool sound = !module.empty() && !name.empty() &&
                     IsUtf8WithSurrogates(module.data(), module.size()) &&
                     IsUtf8WithSurrogates(name.data(), name.size());
  // A newline inside could not be written back: GLOBAL ends names with one.
  if (!sound || module.find('\n') != std::string_view::npos ||
      name.find('\n') != std::string_view::npos) {
    return Malformed("a class name that is empty or not text", "module and name");
  }
  return PushNew({GlobalNode{std::string(module), std::string(name)}});
}

Status PickleMachine::StepGlobal() {
  CK_TRY(const std::string_view module, TakeLine());
  CK_TRY(const std::string_view name, TakeLine());
  return PushGlobal(module, name);
}

Status PickleMachine::StepStackGlobal() {
  CK_TRY(const Value name, Pop());
  CK_TRY(const Value module, Pop());
  const auto* name_text = As<StringNode>(name);
  const auto* module_text = As<StringNode>(module);
  if (!name_text || !module_text) return Malformed("a class name that is no string", "strings");
  return PushGlobal(module_text->text, name_text->text);
}

Status PickleMachine::PushObject(ObjectNode::How how) {
  CK_TRY(Value args, Pop());
  CK_TRY(Value callable, Pop());
  if (!As<TupleNode>(args)) return Malformed("arguments that are no tuple", "a tuple");
  // An object in the place of the callable: the result of another call, as functools.partial makes
  // it.
  if (!As<GlobalNode>(callable) && !As<ObjectNode>(callable)) {
    return Malformed("something that cannot be called", "a class or function");
  }
  ObjectNode object;
  object.how = how;
  object.callable = std::move(callable);
  object.args = std::move(args);
  return PushContainer({std::move(object)});
}

Status PickleMachine::StepReduce() { return PushObject(ObjectNode::How::kReduce); }
Status PickleMachine::StepNewObj() { return PushObject(ObjectNode::How::kNewObj); }

Status PickleMachine::StepBuild() {
  CK_TRY(Value state, Pop());
  CK_TRY(const Value target, Top());
  auto* object = std::get_if<ObjectNode>(&target->content);
  if (object == nullptr) return Malformed("state for what is no instance", "an instance");
  if (object->state) return Malformed("a second state for one instance", "one BUILD an instance");
  object->state = std::move(state);
  return Done{};
}

Status PickleMachine::StepBinPersId() {
  CK_TRY(Value pid, Pop());
  const auto* tuple = As<TupleNode>(pid);
  const std::vector<Value> none;
  const std::vector<Value>& parts = tuple ? tuple->items : none;
  const auto* kind = parts.size() == 5 || parts.size() == 6 ? As<StringNode>(parts[0]) : nullptr;
  if (kind == nullptr || kind->text != "storage" || !As<GlobalNode>(parts[1]) ||
      !As<StringNode>(parts[2]) || !As<StringNode>(parts[3]) || !As<int64_t>(parts[4])) {
    return Malformed("a persistent id of another form", "('storage', class, key, location, numel)");
  }
  if (!resolve_) return Malformed("a tensor storage", "a pickle without tensors");
  CK_TRY(StoragePtr storage, resolve_(pid));
  CHECK(storage != nullptr, << Here());
  return PushNew({StorageNode{.storage = std::move(storage), .pid = std::move(pid)}});
}

}  // namespace checkpoint
