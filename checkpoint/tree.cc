#include "checkpoint/tree.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <utility>

#include "checkpoint/walk.h"

namespace checkpoint {
namespace {

bool IsDictClass(const ObjectNode& object) {
  const auto* global = As<GlobalNode>(object.callable);
  return global && global->module == "collections" &&
         (global->name == "OrderedDict" || global->name == "defaultdict");
}

// Keys of mappings are compared with these two.
bool IsKey(const Value& key, std::string_view text) {
  const auto* string = As<StringNode>(key);
  return string && string->text == text;
}
bool IsKey(const Value& key, int64_t number) {
  const auto* integer = As<int64_t>(key);
  return integer && *integer == number;
}

template <typename Key>
Value Find(const Value& mapping, Key key) {
  const Items* items = MappingItems(mapping);
  if (items == nullptr) return nullptr;
  for (const auto& [item_key, item] : *items) {
    if (IsKey(item_key, key)) return item;
  }
  return nullptr;
}

// The class of `mapping` around other items; the key nodes are shared.
Value WithItems(const Value& mapping, Items items) {
  auto copy = std::make_shared<Node>(*mapping);
  if (auto* dict = std::get_if<DictNode>(&copy->content)) {
    dict->items = std::move(items);
    return copy;
  }
  auto& object = std::get<ObjectNode>(copy->content);
  if (MappingItems(mapping) == &std::get<ObjectNode>(mapping->content).items) {
    object.items = std::move(items);
  } else {
    object.state = MakeDict(std::move(items));
  }
  return copy;
}

// Union-find over nodes of both trees: nodes in one class were found, or are assumed, equal. Each
// call of Join that returns true joins two classes, so the walk is linear in nodes even where one
// tree shares what the other repeats.
class NodeClasses {
 public:
  bool Join(const Node* a, const Node* b) {
    const Node* root_a = Root(a);
    const Node* root_b = Root(b);
    if (root_a == root_b) return false;
    parent_[root_b] = root_a;
    return true;
  }

 private:
  const Node* Root(const Node* node) {
    while (true) {
      const auto [place, is_new] = parent_.try_emplace(node, node);
      if (place->second == node) return node;
      const Node* above = parent_.at(place->second);
      place->second = above;  // path halving
      node = above;
    }
  }
  std::unordered_map<const Node*, const Node*> parent_;
};

bool SameScalar(const NoneNode&, const NoneNode&) { return true; }
bool SameScalar(bool a, bool b) { return a == b; }
bool SameScalar(int64_t a, int64_t b) { return a == b; }
bool SameScalar(const BigIntNode& a, const BigIntNode& b) {
  return a.little_endian == b.little_endian;
}
// 0.0 and -0.0 differ: they are other bits, and written back as such.
bool SameScalar(double a, double b) {
  if (a != a || b != b) return a != a && b != b;
  return a == b && std::signbit(a) == std::signbit(b);
}
bool SameScalar(const StringNode& a, const StringNode& b) { return a.text == b.text; }
bool SameScalar(const BytesNode& a, const BytesNode& b) { return a.bytes == b.bytes; }
bool SameScalar(const GlobalNode& a, const GlobalNode& b) {
  return a.module == b.module && a.name == b.name;
}
bool SameScalar(const StorageNode& a, const StorageNode& b) {
  return a.storage->dtype == b.storage->dtype && a.storage->numel == b.storage->numel;
}
// Containers: what is not said by the list of children.
bool SameScalar(const TupleNode&, const TupleNode&) { return true; }
bool SameScalar(const ListNode&, const ListNode&) { return true; }
bool SameScalar(const DictNode&, const DictNode&) { return true; }
bool SameScalar(const SetNode& a, const SetNode& b) { return a.frozen == b.frozen; }
bool SameScalar(const ObjectNode& a, const ObjectNode& b) {
  return a.how == b.how && a.appended.size() == b.appended.size() &&
         a.items.size() == b.items.size();
}

bool SameNode(const Node& a, const Node& b) {
  if (a.content.index() != b.content.index()) return false;
  return std::visit(
      [&](const auto& content) {
        using T = std::decay_t<decltype(content)>;
        return SameScalar(content, std::get<T>(b.content));
      },
      a.content);
}

std::string RenderScalar(const Value& value) {
  if (IsNone(value)) return "None";
  if (const auto* flag = As<bool>(value)) return *flag ? "True" : "False";
  if (const auto* number = As<int64_t>(value)) return std::to_string(*number);
  if (const auto* number = As<double>(value)) {
    std::string text = fmt::format("{}", *number);
    // 1.0 stays told from 1.
    if (text.find_first_not_of("-0123456789") == std::string::npos) text += ".0";
    return text;
  }
  if (const auto* text = As<StringNode>(value)) {
    std::string line = "'";
    for (const char symbol : text->text.substr(0, 4096)) {
      line += static_cast<unsigned char>(symbol) < 0x20 ? ' ' : symbol;
    }
    return line + "'";
  }
  if (const auto* number = As<BigIntNode>(value)) {
    return fmt::format("int({} bytes)", number->little_endian.size());
  }
  if (const auto* bytes = As<BytesNode>(value))
    return fmt::format("bytes({})", bytes->bytes.size());
  if (const auto* global = As<GlobalNode>(value)) return global->module + "." + global->name;
  return "";
}

bool IsShortSequence(const std::vector<Value>& items) {
  if (items.size() > 16) return false;
  for (const Value& item : items) {
    if (RenderScalar(item).empty()) return false;
  }
  return true;
}

std::string RenderSequence(const std::vector<Value>& items, bool is_list) {
  if (!IsShortSequence(items))
    return fmt::format("{}({})", is_list ? "list" : "tuple", items.size());
  std::string line(1, is_list ? '[' : '(');
  for (const Value& item : items) {
    if (line.size() > 1) line += ", ";
    line += RenderScalar(item);
  }
  if (!is_list && items.size() == 1) line += ',';
  return line + (is_list ? ']' : ')');
}

std::string RenderObject(const Value& value) {
  const Items* items = MappingItems(value);
  if (items) return fmt::format("{}({})", ClassName(value), items->size());
  if (const auto* shape = SequenceItems(value)) {
    return fmt::format("{}({})", ClassName(value), RenderSequence(*shape, true));
  }
  const auto* args = As<TupleNode>(As<ObjectNode>(value)->args);
  if (args == nullptr || !IsShortSequence(args->items)) return ClassName(value) + "(...)";
  return ClassName(value) + RenderSequence(args->items, false);
}

std::string RenderAny(const Value& value) {
  if (std::string text = RenderScalar(value); !text.empty()) return text;
  if (const auto* tuple = As<TupleNode>(value)) return RenderSequence(tuple->items, false);
  if (const auto* list = As<ListNode>(value)) return RenderSequence(list->items, true);
  if (const auto* dict = As<DictNode>(value)) return fmt::format("dict({})", dict->items.size());
  if (const auto* set = As<SetNode>(value)) return fmt::format("set({})", set->items.size());
  if (const auto* node = As<StorageNode>(value)) {
    return fmt::format("storage({}, {})", DTypeName(node->storage->dtype), node->storage->numel);
  }
  return RenderObject(value);
}

}  // namespace

bool IsNone(const Value& value) { return !value || As<NoneNode>(value); }

const Items* MappingItems(const Value& value) {
  if (const auto* dict = As<DictNode>(value)) return &dict->items;
  const auto* object = As<ObjectNode>(value);
  if (object == nullptr) return nullptr;
  // An OrderedDict may have a state too (the _metadata of a module's state_dict): its items are
  // what it maps.
  if (!object->items.empty() || IsDictClass(*object)) return &object->items;
  const auto* state = As<DictNode>(object->state);
  return state ? &state->items : nullptr;
}

const std::vector<Value>* SequenceItems(const Value& value) {
  if (const auto* tuple = As<TupleNode>(value)) return &tuple->items;
  if (const auto* list = As<ListNode>(value)) return &list->items;
  if (ClassName(value) != "torch.Size") return nullptr;
  const auto* args = As<TupleNode>(As<ObjectNode>(value)->args);
  const auto* shape = args && args->items.size() == 1 ? As<TupleNode>(args->items[0]) : nullptr;
  return shape ? &shape->items : nullptr;
}

Value Get(const Value& mapping, std::string_view key) { return Find(mapping, key); }
Value GetIndex(const Value& mapping, int64_t key) { return Find(mapping, key); }

Value GetPath(const Value& root, std::initializer_list<std::string_view> keys) {
  Value value = root;
  for (const std::string_view key : keys) value = Get(value, key);
  return value;
}

bool Has(const Value& mapping, std::string_view key) { return Get(mapping, key) != nullptr; }

std::optional<int64_t> AsInt(const Value& value) {
  if (const auto* number = As<int64_t>(value)) return *number;
  if (const auto* flag = As<bool>(value)) return *flag ? 1 : 0;
  const auto* object = As<ObjectNode>(value);
  if (object == nullptr || object->how != ObjectNode::How::kReduce) return std::nullopt;
  if (object->state || !object->items.empty() || !object->appended.empty()) return std::nullopt;
  const auto* args = As<TupleNode>(object->args);
  if (args == nullptr || args->items.size() != 1) return std::nullopt;
  const auto* number = As<int64_t>(args->items[0]);
  return number ? std::optional(*number) : std::nullopt;
}

std::optional<double> AsNumber(const Value& value) {
  if (const auto* number = As<double>(value)) return *number;
  if (const auto* number = As<int64_t>(value)) return static_cast<double>(*number);
  if (const auto* flag = As<bool>(value)) return *flag ? 1.0 : 0.0;
  return std::nullopt;
}

std::optional<bool> AsBool(const Value& value) {
  const auto* flag = As<bool>(value);
  return flag ? std::optional(*flag) : std::nullopt;
}

std::optional<std::string> AsString(const Value& value) {
  const auto* text = As<StringNode>(value);
  return text ? std::optional(text->text) : std::nullopt;
}

std::optional<std::vector<int64_t>> AsIntList(const Value& value) {
  const std::vector<Value>* items = SequenceItems(value);
  if (items == nullptr) return std::nullopt;
  std::vector<int64_t> numbers;
  numbers.reserve(items->size());
  for (const Value& item : *items) {
    const auto* number = As<int64_t>(item);
    if (number == nullptr) return std::nullopt;
    numbers.push_back(*number);
  }
  return numbers;
}

std::string ClassName(const Value& value) {
  const auto* object = As<ObjectNode>(value);
  const auto* global = object ? As<GlobalNode>(object->callable) : nullptr;
  return global ? global->module + "." + global->name : "";
}

Value WithEntry(const Value& mapping, std::string_view key, Value entry) {
  const Items* old_items = MappingItems(mapping);
  CHECK(old_items != nullptr, << "no mapping, key " << key);
  Items items = *old_items;
  for (auto& [item_key, item] : items) {
    if (!IsKey(item_key, key)) continue;
    item = std::move(entry);
    return WithItems(mapping, std::move(items));
  }
  items.emplace_back(MakeString(std::string(key)), std::move(entry));
  return WithItems(mapping, std::move(items));
}

Value WithoutEntry(const Value& mapping, std::string_view key) {
  const Items* old_items = MappingItems(mapping);
  CHECK(old_items != nullptr, << "no mapping, key " << key);
  Items items = *old_items;
  std::erase_if(items, [&](const auto& item) { return IsKey(item.first, key); });
  return WithItems(mapping, std::move(items));
}

bool SameStructure(const Value& a, const Value& b) {
  std::vector<std::pair<const Node*, const Node*>> open;
  NodeClasses classes;
  // False where one is absent and the other not.
  const auto meet = [&](const Value& one, const Value& other) {
    if (!one || !other) return !one && !other;
    if (one != other && classes.Join(one.get(), other.get())) {
      open.emplace_back(one.get(), other.get());
    }
    return true;
  };
  if (!meet(a, b)) return false;
  while (!open.empty()) {
    const auto [one, other] = open.back();
    open.pop_back();
    if (!SameNode(*one, *other)) return false;
    if (std::holds_alternative<StorageNode>(one->content)) continue;  // not its pid
    for (size_t i = 0;; ++i) {
      const Value* child = ChildAt(*one, i);
      const Value* other_child = ChildAt(*other, i);
      if (!child || !other_child) {
        if (child || other_child) return false;
        break;
      }
      if (!meet(*child, *other_child)) return false;
    }
  }
  return true;
}

std::string Render(const Value& value, size_t chars_max) {
  std::string text = RenderAny(value);
  if (text.size() <= chars_max) return text;
  size_t keep = chars_max > 3 ? chars_max - 3 : 0;
  // Not in the middle of a UTF-8 character.
  while (keep > 0 && (static_cast<unsigned char>(text[keep]) & 0xc0) == 0x80) --keep;
  return text.substr(0, keep) + std::string(std::min<size_t>(chars_max, 3), '.');
}

}  // namespace checkpoint
