#include "certify/tree_bits.h"

#include <algorithm>
#include <set>
#include <variant>

#include "checkpoint/tensor.h"
#include "checkpoint/tree.h"

namespace certify {
namespace {

using checkpoint::Value;

// Children of a node in reading order.
void AppendChildren(const Value& value, std::vector<Value>& out) {
  const auto items = [&](const auto& pairs) {
    for (const auto& [key, entry] : pairs) out.insert(out.end(), {key, entry});
  };
  if (const auto* tuple = checkpoint::As<checkpoint::TupleNode>(value))
    out.insert(out.end(), tuple->items.begin(), tuple->items.end());
  if (const auto* list = checkpoint::As<checkpoint::ListNode>(value))
    out.insert(out.end(), list->items.begin(), list->items.end());
  if (const auto* set = checkpoint::As<checkpoint::SetNode>(value))
    out.insert(out.end(), set->items.begin(), set->items.end());
  if (const auto* dict = checkpoint::As<checkpoint::DictNode>(value)) items(dict->items);
  if (const auto* object = checkpoint::As<checkpoint::ObjectNode>(value)) {
    out.push_back(object->args);
    out.insert(out.end(), object->appended.begin(), object->appended.end());
    items(object->items);
    out.push_back(object->state);
  }
}

bool SameBytes(const checkpoint::Storage& a, const checkpoint::Storage& b) {
  // A storage without a file has no bytes yet; no checkpoint that was read has one.
  if (a.file == nullptr || b.file == nullptr) return a.file == b.file;
  const auto x = checkpoint::StorageBytes(a), y = checkpoint::StorageBytes(b);
  return std::equal(x.begin(), x.end(), y.begin(), y.end());
}

}  // namespace

std::vector<checkpoint::StoragePtr> StoragesBelow(const Value& root) {
  std::vector<checkpoint::StoragePtr> storages;
  std::set<const checkpoint::Storage*> known;
  std::set<const checkpoint::Node*> visited;
  std::vector<Value> pending{root};
  while (!pending.empty()) {
    const Value value = pending.back();
    pending.pop_back();
    if (value == nullptr || !visited.insert(value.get()).second) continue;
    if (const auto* node = checkpoint::As<checkpoint::StorageNode>(value)) {
      if (node->storage != nullptr && known.insert(node->storage.get()).second)
        storages.push_back(node->storage);
      continue;
    }
    std::vector<Value> children;
    AppendChildren(value, children);
    pending.insert(pending.end(), children.rbegin(), children.rend());
  }
  return storages;
}

bool SameTree(const Value& a, const Value& b) {
  if (a == nullptr || b == nullptr) return a == b;
  if (!checkpoint::SameStructure(a, b)) return false;
  const auto x = StoragesBelow(a), y = StoragesBelow(b);
  if (x.size() != y.size()) return false;
  for (size_t i = 0; i < x.size(); ++i)
    if (!SameBytes(*x[i], *y[i])) return false;
  return true;
}

}  // namespace certify
