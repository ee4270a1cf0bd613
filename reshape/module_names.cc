#include "reshape/module_names.h"

#include <utility>

#include "checkpoint/tensor.h"
#include "checkpoint/tree.h"

namespace reshape {

std::vector<NamedValue> FlattenModule(const checkpoint::Value& module) {
  struct Level {
    const checkpoint::Items* items;
    size_t next;
    std::string prefix;
  };
  std::vector<NamedValue> tensors;
  std::vector<Level> levels;
  if (const auto* items = checkpoint::MappingItems(module)) levels.push_back({items, 0, ""});
  while (!levels.empty()) {
    Level& level = levels.back();
    if (level.next == level.items->size()) {
      levels.pop_back();
      continue;
    }
    const auto& [key_value, value] = (*level.items)[level.next++];
    const auto key = checkpoint::AsString(key_value);
    if (!key) continue;
    std::string name = level.prefix + *key;
    if (checkpoint::IsTensor(value)) {
      tensors.push_back({std::move(name), value});
    } else if (const auto* items = checkpoint::MappingItems(value)) {
      levels.push_back({items, 0, std::move(name) + "."});  // `level` is dangling from here on
    }
  }
  return tensors;
}

}  // namespace reshape
