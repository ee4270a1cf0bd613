#include "checkpoint/pickle_tree_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "checkpoint/walk.h"

namespace checkpoint {
namespace {

constexpr int32_t kOpenHeight = -1;

Error Malformed(std::string found, std::string expected, const std::string& where) {
  return Error{ErrorCode::kMalformedPickle, std::move(found), std::move(expected), where,
               "No checkpoint writer makes such a file; fetch it again from where it was written."};
}

// Keys that are equal in Python are equal here: 1, 1.0 and True are one key.
class KeySet {
 public:
  enum class Outcome { kNew, kTwice, kUnhashable };

  Outcome Add(const Value& key) {
    if (const auto* text = As<StringNode>(key)) return Note(strings_.insert(text->text).second);
    if (const auto* bytes = As<BytesNode>(key)) return Note(bytes_.insert(bytes->bytes).second);
    if (const auto* number = As<int64_t>(key)) return Note(integers_.insert(*number).second);
    if (const auto* flag = As<bool>(key)) return Note(integers_.insert(*flag ? 1 : 0).second);
    if (const auto* number = As<double>(key)) return AddDouble(*number);
    if (As<NoneNode>(key)) return Note(!std::exchange(has_none_, true));
    if (As<ListNode>(key) || As<DictNode>(key)) return Outcome::kUnhashable;
    if (const auto* set = As<SetNode>(key); set && !set->frozen) return Outcome::kUnhashable;
    return Outcome::kNew;  // tuples, classes, instances: their equality is not known here
  }

 private:
  static Outcome Note(bool is_new) { return is_new ? Outcome::kNew : Outcome::kTwice; }

  Outcome AddDouble(double number) {
    // 2^63 as a double; the cast below is defined only inside.
    constexpr double kBound = 9223372036854775808.0;
    if (std::isnan(number)) return Outcome::kNew;  // NaN is a new key each time, as in Python
    if (number == std::floor(number) && number >= -kBound && number < kBound) {
      return Note(integers_.insert(static_cast<int64_t>(number)).second);
    }
    return Note(doubles_.insert(number).second);
  }

  std::unordered_set<std::string_view> strings_, bytes_;
  std::unordered_set<int64_t> integers_;
  std::unordered_set<double> doubles_;
  bool has_none_ = false;
};

Status CheckKey(KeySet& keys, const Value& key, const std::string& where) {
  switch (keys.Add(key)) {
    case KeySet::Outcome::kNew:
      return Done{};
    case KeySet::Outcome::kTwice: {
      const auto* text = As<StringNode>(key);
      return Malformed(text ? fmt::format("key '{}' twice in one mapping", text->text.substr(0, 80))
                            : "one key twice in a mapping",
                       "each key once", where);
    }
    case KeySet::Outcome::kUnhashable:
      return Malformed("a list, dict or set as a key", "a hashable key", where);
  }
  return Done{};
}

Status CheckKeys(const Node& node, const std::string& where) {
  const std::vector<std::pair<Value, Value>>* items = nullptr;
  if (const auto* dict = std::get_if<DictNode>(&node.content)) items = &dict->items;
  if (const auto* object = std::get_if<ObjectNode>(&node.content)) items = &object->items;
  KeySet keys;
  if (items) {
    for (const auto& [key, value] : *items) CK_DO(CheckKey(keys, key, where));
  }
  if (const auto* set = std::get_if<SetNode>(&node.content)) {
    for (const Value& item : set->items) CK_DO(CheckKey(keys, item, where));
  }
  return Done{};
}

struct Frame {
  const Node* node;
  size_t next_child = 0;
  int32_t height = 1;
};

Error TooDeep(int64_t depth_max, const std::string& where) {
  return Error{
      ErrorCode::kLimitExceeded, fmt::format("objects nested more than {} deep", depth_max),
      fmt::format("at most {}", depth_max), where,
      "Real checkpoints stay below 20; this file was not written by a training framework."};
}

}  // namespace

Status CheckTree(const Value& root, int64_t depth_max, const std::string& where,
                 NodeHeights* heights) {
  std::vector<Frame> open;
  open.push_back({.node = root.get()});
  heights->emplace(root.get(), kOpenHeight);
  while (!open.empty()) {
    Frame& frame = open.back();
    const Value* child = ChildAt(*frame.node, frame.next_child);
    if (child == nullptr) {
      CK_DO(CheckKeys(*frame.node, where));
      const int32_t height = frame.height;
      if (height > depth_max) return TooDeep(depth_max, where);
      (*heights)[frame.node] = height;
      open.pop_back();
      if (!open.empty()) open.back().height = std::max(open.back().height, height + 1);
      continue;
    }
    ++frame.next_child;
    if (*child == nullptr) continue;
    const auto [place, is_new] = heights->emplace(child->get(), kOpenHeight);
    if (!is_new) {
      if (place->second == kOpenHeight) {
        return Malformed("an object that contains itself", "a tree without cycles", where);
      }
      frame.height = std::max(frame.height, place->second + 1);
      continue;
    }
    // The path alone is already too deep: stop here, so that `open` stays small.
    if (static_cast<int64_t>(open.size()) >= depth_max) return TooDeep(depth_max, where);
    open.push_back({.node = child->get()});
  }
  return Done{};
}

}  // namespace checkpoint
