#include "checkpoint/value.h"

namespace checkpoint {
namespace {

template <typename T>
Value MakeNode(T content) {
  auto node = std::make_shared<Node>();
  node->content.emplace<T>(std::move(content));
  return node;
}

}  // namespace

Value MakeNone() { return MakeNode(NoneNode{}); }
Value MakeBool(bool value) { return MakeNode<bool>(value); }
Value MakeInt(int64_t value) { return MakeNode<int64_t>(value); }
Value MakeFloat(double value) { return MakeNode<double>(value); }
Value MakeString(std::string text) { return MakeNode(StringNode{std::move(text)}); }
Value MakeTuple(std::vector<Value> items) { return MakeNode(TupleNode{std::move(items)}); }
Value MakeList(std::vector<Value> items) { return MakeNode(ListNode{std::move(items)}); }
Value MakeDict(std::vector<std::pair<Value, Value>> items) {
  return MakeNode(DictNode{std::move(items)});
}
Value MakeGlobal(std::string module, std::string name) {
  return MakeNode(GlobalNode{std::move(module), std::move(name)});
}

Value MakeOrderedDict(std::vector<std::pair<Value, Value>> items) {
  ObjectNode object;
  object.callable = MakeGlobal("collections", "OrderedDict");
  object.args = MakeTuple({});
  object.items = std::move(items);
  return MakeNode(std::move(object));
}

Value MakeInstance(std::string module, std::string name, Value state_dict) {
  ObjectNode object;
  object.how = ObjectNode::How::kNewObj;
  object.callable = MakeGlobal(std::move(module), std::move(name));
  object.args = MakeTuple({});
  object.state = std::move(state_dict);
  return MakeNode(std::move(object));
}

Value MakeReduce(std::string module, std::string name, std::vector<Value> args) {
  ObjectNode object;
  object.callable = MakeGlobal(std::move(module), std::move(name));
  object.args = MakeTuple(std::move(args));
  return MakeNode(std::move(object));
}

Value MakeTorchSize(const std::vector<int64_t>& shape) {
  std::vector<Value> numbers;
  numbers.reserve(shape.size());
  for (int64_t count : shape) numbers.push_back(MakeInt(count));
  return MakeReduce("torch", "Size", {MakeTuple(std::move(numbers))});
}

}  // namespace checkpoint
