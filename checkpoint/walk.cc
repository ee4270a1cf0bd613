#include "checkpoint/walk.h"

namespace checkpoint {
namespace {

const Value* ItemAt(const std::vector<Value>& items, size_t index) {
  return index < items.size() ? &items[index] : nullptr;
}

const Value* PairAt(const std::vector<std::pair<Value, Value>>& items, size_t index) {
  if (index / 2 >= items.size()) return nullptr;
  const auto& [key, value] = items[index / 2];
  return index % 2 == 0 ? &key : &value;
}

const Value* ObjectChildAt(const ObjectNode& object, size_t index) {
  if (index == 0) return &object.callable;
  if (index == 1) return &object.args;
  index -= 2;
  if (index < object.appended.size()) return &object.appended[index];
  index -= object.appended.size();
  if (index < object.items.size() * 2) return PairAt(object.items, index);
  index -= object.items.size() * 2;
  return index == 0 ? &object.state : nullptr;
}

}  // namespace

const Value* ChildAt(const Node& node, size_t index) {
  if (const auto* tuple = std::get_if<TupleNode>(&node.content)) return ItemAt(tuple->items, index);
  if (const auto* list = std::get_if<ListNode>(&node.content)) return ItemAt(list->items, index);
  if (const auto* set = std::get_if<SetNode>(&node.content)) return ItemAt(set->items, index);
  if (const auto* dict = std::get_if<DictNode>(&node.content)) return PairAt(dict->items, index);
  if (const auto* object = std::get_if<ObjectNode>(&node.content)) {
    return ObjectChildAt(*object, index);
  }
  if (const auto* storage = std::get_if<StorageNode>(&node.content)) {
    return index == 0 ? &storage->pid : nullptr;
  }
  return nullptr;
}

bool IsUtf8WithSurrogates(const char* begin, size_t count) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(begin);
  size_t at = 0;
  while (at < count) {
    const unsigned char first = bytes[at++];
    if (first < 0x80) continue;
    size_t follow = 0;
    unsigned char second_min = 0x80, second_max = 0xbf;
    if (first >= 0xc2 && first <= 0xdf) {
      follow = 1;
    } else if (first >= 0xe0 && first <= 0xef) {
      follow = 2;
      if (first == 0xe0) second_min = 0xa0;
    } else if (first >= 0xf0 && first <= 0xf4) {
      follow = 3;
      if (first == 0xf0) second_min = 0x90;
      if (first == 0xf4) second_max = 0x8f;
    } else {
      return false;
    }
    if (follow > count - at) return false;
    if (bytes[at] < second_min || bytes[at] > second_max) return false;
    for (size_t i = 1; i < follow; ++i) {
      if ((bytes[at + i] & 0xc0) != 0x80) return false;
    }
    at += follow;
  }
  return true;
}

}  // namespace checkpoint
