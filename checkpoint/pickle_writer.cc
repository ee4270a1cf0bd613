// Protocol 2 as CPython 3.11's C pickler writes it, byte for byte: the order of memo numbers, the
// integer widths, and its two ways to batch items (plain lists and dicts differ from those of
// instances).
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <map>
#include <unordered_map>
#include <utility>

#include "checkpoint/dtype.h"
#include "checkpoint/limits.h"
#include "checkpoint/pickle.h"
#include "checkpoint/pickle_opcodes.h"
#include "checkpoint/pickle_tree_check.h"

namespace checkpoint {
namespace {

constexpr size_t kBatch = 1000;

std::string Utf8FromLatin1(const std::string& bytes) {
  std::string text;
  text.reserve(bytes.size());
  for (const char byte : bytes) {
    const auto code = static_cast<unsigned char>(byte);
    if (code < 0x80) {
      text.push_back(byte);
    } else {
      text.push_back(static_cast<char>(0xc0 | code >> 6));
      text.push_back(static_cast<char>(0x80 | (code & 0x3f)));
    }
  }
  return text;
}

class PickleWriter {
 public:
  explicit PickleWriter(StringMemo memo) : string_memo_(memo) {}

  PickleOutput Write(const Value& root) {
    Byte(opcode::kProto);
    Byte(2);
    tasks_.push_back({Task::Kind::kSave, root.get()});
    while (!tasks_.empty()) {
      const Task task = tasks_.back();
      tasks_.pop_back();
      Do(task);
    }
    Byte(opcode::kStop);
    return std::move(output_);
  }

 private:
  // What remains to be written, last first. An explicit stack, so that no input decides how deep we
  // recurse.
  struct Task {
    enum class Kind { kSave, kOpcode, kMemoize, kList, kDict, kObjectList, kObjectDict };
    Kind kind;
    const Node* node = nullptr;
    size_t begin = 0;  // of the next batch
    uint8_t code = 0;  // of kOpcode
  };

  void Do(const Task& task) {
    switch (task.kind) {
      case Task::Kind::kSave:
        return Save(*task.node);
      case Task::Kind::kOpcode:
        return Byte(task.code);
      case Task::Kind::kMemoize:
        return Memoize(*task.node);
      case Task::Kind::kList:
        return ListBatch(*task.node, task.begin);
      case Task::Kind::kDict:
        return DictBatch(*task.node, task.begin);
      case Task::Kind::kObjectList:
        return ObjectListBatch(*task.node, task.begin);
      case Task::Kind::kObjectDict:
        return ObjectDictBatch(*task.node, task.begin);
    }
  }

  void Byte(uint8_t byte) { output_.bytes.push_back(static_cast<char>(byte)); }
  void LittleEndian(uint64_t number, int width) {
    for (int i = 0; i < width; ++i) Byte(static_cast<uint8_t>(number >> (8 * i)));
  }

  void LaterSave(const Value& value) { tasks_.push_back({Task::Kind::kSave, value.get()}); }
  void LaterOpcode(uint8_t code) { tasks_.push_back({.kind = Task::Kind::kOpcode, .code = code}); }
  void LaterMemoize(const Node& node) { tasks_.push_back({Task::Kind::kMemoize, &node}); }

  // Memo. Strings go by identity or content; classes by content always, as a class is one object in
  // Python.
  std::pair<uint32_t*, bool> MemoSlot(const Node& node) {
    if (const auto* global = std::get_if<GlobalNode>(&node.content)) {
      const auto [place, is_new] = global_memo_.try_emplace({global->module, global->name}, 0);
      return {&place->second, is_new};
    }
    if (string_memo_ == StringMemo::kByContent) {
      if (const auto* text = std::get_if<StringNode>(&node.content)) {
        const auto [place, is_new] = text_memo_.try_emplace(text->text, 0);
        return {&place->second, is_new};
      }
    }
    const auto [place, is_new] = memo_.try_emplace(&node, 0);
    return {&place->second, is_new};
  }

  bool IsMemoized(const Node& node, uint32_t* index) const {
    if (const auto* global = std::get_if<GlobalNode>(&node.content)) {
      return Find(global_memo_, std::pair(global->module, global->name), index);
    }
    const auto* text = std::get_if<StringNode>(&node.content);
    if (text && string_memo_ == StringMemo::kByContent) return Find(text_memo_, text->text, index);
    return Find(memo_, &node, index);
  }

  template <typename Map, typename Key>
  static bool Find(const Map& map, const Key& key, uint32_t* index) {
    const auto found = map.find(key);
    if (found == map.end()) return false;
    *index = found->second;
    return true;
  }

  void Memoize(const Node& node) {
    const auto [slot, is_new] = MemoSlot(node);
    // A node without cycles is complete before it can be met again.
    CHECK(is_new, << "memo entry " << *slot << " written twice");
    *slot = memo_count_++;
    if (*slot < 256) {
      Byte(opcode::kBinPut);
      Byte(static_cast<uint8_t>(*slot));
    } else {
      Byte(opcode::kLongBinPut);
      LittleEndian(*slot, 4);
    }
  }

  void Get(uint32_t index) {
    if (index < 256) {
      Byte(opcode::kBinGet);
      Byte(static_cast<uint8_t>(index));
    } else {
      Byte(opcode::kLongBinGet);
      LittleEndian(index, 4);
    }
  }

  void Save(const Node& node) {
    if (uint32_t index = 0; IsMemoized(node, &index)) return Get(index);
    std::visit([&](const auto& content) { SaveContent(node, content); }, node.content);
  }

  void SaveContent(const Node&, const NoneNode&) { Byte(opcode::kNone); }
  void SaveContent(const Node&, bool flag) { Byte(flag ? opcode::kNewTrue : opcode::kNewFalse); }

  void SaveContent(const Node&, int64_t number) {
    if (number >= 0 && number <= 0xff) {
      Byte(opcode::kBinInt1);
      return Byte(static_cast<uint8_t>(number));
    }
    if (number >= 0 && number <= 0xffff) {
      Byte(opcode::kBinInt2);
      return LittleEndian(static_cast<uint64_t>(number), 2);
    }
    if (number >= INT32_MIN && number <= INT32_MAX) {
      Byte(opcode::kBinInt);
      return LittleEndian(static_cast<uint64_t>(number), 4);
    }
    // The fewest bytes whose sign bit is right.
    int width = 8;
    while (width > 1 && (number >> (8 * width - 9) == 0 || number >> (8 * width - 9) == -1)) {
      --width;
    }
    Byte(opcode::kLong1);
    Byte(static_cast<uint8_t>(width));
    LittleEndian(static_cast<uint64_t>(number), width);
  }

  void SaveContent(const Node&, const BigIntNode& number) {
    const size_t count = number.little_endian.size();
    if (count < 256) {
      Byte(opcode::kLong1);
      Byte(static_cast<uint8_t>(count));
    } else {
      Byte(opcode::kLong4);
      LittleEndian(count, 4);
    }
    output_.bytes += number.little_endian;
  }

  void SaveContent(const Node&, double number) {
    Byte(opcode::kBinFloat);
    const auto bits = std::bit_cast<uint64_t>(number);
    for (int shift = 56; shift >= 0; shift -= 8) Byte(static_cast<uint8_t>(bits >> shift));
  }

  void SaveContent(const Node& node, const StringNode& text) {
    Byte(opcode::kBinUnicode);
    LittleEndian(text.text.size(), 4);
    output_.bytes += text.text;
    Memoize(node);
  }

  // Protocol 2 has no bytes: Python writes them as a call that makes them from Latin-1 text.
  void SaveContent(const Node& node, const BytesNode& bytes) {
    if (bytes.bytes.empty()) return SaveCall(node, "__builtin__", "bytes", MakeTuple({}));
    SaveCall(node, "_codecs", "encode",
             MakeTuple({MakeString(Utf8FromLatin1(bytes.bytes)), MadeString("latin1")}));
  }

  void SaveContent(const Node& node, const SetNode& set) {
    SaveCall(node, "__builtin__", set.frozen ? "frozenset" : "set",
             MakeTuple({MakeList(set.items)}));
  }

  // `node` as the result of a call, as REDUCE describes it.
  void SaveCall(const Node& node, std::string module, std::string name, Value args) {
    made_.push_back(MakeGlobal(std::move(module), std::move(name)));
    const Value callable = made_.back();
    made_.push_back(std::move(args));
    LaterMemoize(node);
    LaterOpcode(opcode::kReduce);
    LaterSave(made_.back());
    LaterSave(callable);
  }

  void SaveContent(const Node& node, const TupleNode& tuple) {
    const size_t count = tuple.items.size();
    if (count == 0) return Byte(opcode::kEmptyTuple);
    constexpr uint8_t kClosing[] = {opcode::kTuple1, opcode::kTuple2, opcode::kTuple3};
    if (count > 3) Byte(opcode::kMark);
    LaterMemoize(node);
    LaterOpcode(count > 3 ? opcode::kTuple : kClosing[count - 1]);
    for (size_t i = count; i > 0; --i) LaterSave(tuple.items[i - 1]);
  }

  void SaveContent(const Node& node, const ListNode& list) {
    Byte(opcode::kEmptyList);
    Memoize(node);
    if (!list.items.empty()) tasks_.push_back({Task::Kind::kList, &node});
  }

  void SaveContent(const Node& node, const DictNode& dict) {
    Byte(opcode::kEmptyDict);
    Memoize(node);
    if (!dict.items.empty()) tasks_.push_back({Task::Kind::kDict, &node});
  }

  void SaveContent(const Node& node, const GlobalNode& global) {
    Byte(opcode::kGlobal);
    output_.bytes += global.module;
    Byte('\n');
    output_.bytes += global.name;
    Byte('\n');
    Memoize(node);
  }

  void SaveContent(const Node& node, const ObjectNode& object) {
    if (object.state) {
      LaterOpcode(opcode::kBuild);
      LaterSave(object.state);
    }
    if (!object.items.empty()) tasks_.push_back({Task::Kind::kObjectDict, &node});
    if (!object.appended.empty()) tasks_.push_back({Task::Kind::kObjectList, &node});
    LaterMemoize(node);
    LaterOpcode(object.how == ObjectNode::How::kReduce ? opcode::kReduce : opcode::kNewObj);
    LaterSave(object.args);
    LaterSave(object.callable);
  }

  void SaveContent(const Node&, const StorageNode& node) {
    const auto [place, is_new] =
        storage_index_.try_emplace(node.storage.get(), output_.storages.size());
    if (is_new) output_.storages.push_back(node.storage);
    const std::string key = std::to_string(place->second);
    LaterOpcode(opcode::kBinPersId);
    LaterSave(PidFits(node, key) ? node.pid : MakePid(*node.storage, key));
  }

  // A pid that was read is written from its own nodes, so that its strings keep their identity.
  bool PidFits(const StorageNode& node, const std::string& key) {
    const auto* tuple = As<TupleNode>(node.pid);
    if (tuple == nullptr || tuple->items.size() != 5) return false;
    const auto* kind = As<StringNode>(tuple->items[0]);
    const auto* global = As<GlobalNode>(tuple->items[1]);
    const auto* pid_key = As<StringNode>(tuple->items[2]);
    const auto* location = As<StringNode>(tuple->items[3]);
    const auto* numel = As<int64_t>(tuple->items[4]);
    const Storage& storage = *node.storage;
    if (!kind || kind->text != "storage" || !global || !pid_key || !location || !numel)
      return false;
    if (global->name != StorageClassName(storage.dtype) || pid_key->text != key) return false;
    if (location->text != storage.location || *numel != storage.numel) return false;
    made_strings_.emplace(kind->text, tuple->items[0]);
    made_strings_.emplace(key, tuple->items[2]);
    made_strings_.emplace(location->text, tuple->items[3]);
    return true;
  }

  const Value& MakePid(const Storage& storage, const std::string& key) {
    made_.push_back(MakeTuple(
        {MadeString("storage"), MakeGlobal("torch", std::string(StorageClassName(storage.dtype))),
         MadeString(key), MadeString(storage.location), MakeInt(storage.numel)}));
    return made_.back();
  }

  Value MadeString(const std::string& text) {
    const auto [place, is_new] = made_strings_.try_emplace(text);
    if (is_new) place->second = MakeString(text);
    return place->second;
  }

  // Plain list: full batches, the last one short; one item alone without a mark.
  void ListBatch(const Node& node, size_t begin) {
    const auto& items = std::get<ListNode>(node.content).items;
    if (items.size() == 1) return Single(items[0]);
    const size_t end = std::min(begin + kBatch, items.size());
    if (end < items.size()) tasks_.push_back({Task::Kind::kList, &node, end});
    Batch(items, begin, end);
  }

  // Plain dict: another batch follows every full one, even when it is empty.
  void DictBatch(const Node& node, size_t begin) {
    const auto& items = std::get<DictNode>(node.content).items;
    if (items.size() == 1) return Single(items[0]);
    const size_t end = std::min(begin + kBatch, items.size());
    if (end - begin == kBatch) tasks_.push_back({Task::Kind::kDict, &node, end});
    Batch(items, begin, end);
  }

  void ObjectListBatch(const Node& node, size_t begin) {
    ObjectBatch({Task::Kind::kObjectList, &node, begin},
                std::get<ObjectNode>(node.content).appended);
  }
  void ObjectDictBatch(const Node& node, size_t begin) {
    ObjectBatch({Task::Kind::kObjectDict, &node, begin}, std::get<ObjectNode>(node.content).items);
  }

  // Items of an instance: an item left alone has no mark, whatever came before; no empty batch.
  template <typename Item>
  void ObjectBatch(Task task, const std::vector<Item>& items) {
    const size_t begin = task.begin;
    if (begin == items.size()) return;
    if (begin + 1 == items.size()) return Single(items[begin]);
    const size_t end = std::min(begin + kBatch, items.size());
    task.begin = end;
    if (end - begin == kBatch) tasks_.push_back(task);
    Batch(items, begin, end);
  }

  void Single(const Value& item) {
    LaterOpcode(opcode::kAppend);
    LaterSave(item);
  }
  void Single(const std::pair<Value, Value>& item) {
    LaterOpcode(opcode::kSetItem);
    LaterItem(item);
  }
  void Batch(const std::vector<Value>& items, size_t begin, size_t end) {
    Byte(opcode::kMark);
    LaterOpcode(opcode::kAppends);
    for (size_t i = end; i > begin; --i) LaterSave(items[i - 1]);
  }
  void Batch(const std::vector<std::pair<Value, Value>>& items, size_t begin, size_t end) {
    Byte(opcode::kMark);
    LaterOpcode(opcode::kSetItems);
    for (size_t i = end; i > begin; --i) LaterItem(items[i - 1]);
  }
  void LaterItem(const std::pair<Value, Value>& item) {
    LaterSave(item.second);
    LaterSave(item.first);
  }

  const StringMemo string_memo_;
  PickleOutput output_;
  std::vector<Task> tasks_;
  uint32_t memo_count_ = 0;
  std::unordered_map<const Node*, uint32_t> memo_;
  std::unordered_map<std::string, uint32_t> text_memo_;
  std::map<std::pair<std::string, std::string>, uint32_t> global_memo_;
  std::unordered_map<const Storage*, size_t> storage_index_;
  // Nodes made here live as long as the writer: the memo knows them by address.
  std::vector<Value> made_;
  std::map<std::string, Value> made_strings_;
};

}  // namespace

PickleOutput WritePickle(const Value& root, StringMemo memo) {
  NodeHeights heights;
  // A tree that was read may be put a few levels deeper into a composed one.
  const Status sound = CheckTree(root, 2 * kPickleDepthMax, "a tree to be written", &heights);
  CHECK(sound.ok(), << sound.error().ToString());
  return PickleWriter(memo).Write(root);
}

}  // namespace checkpoint
