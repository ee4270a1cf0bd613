// The typed tree that a pickle becomes. Nothing is ever executed or imported: a class is a Global
// node, an instance an Object node with its class, its arguments and its state, and is written back
// as it was.
//
// Node identity is meaning: two places that hold the same Value pointer were one Python object, and
// the writer emits the second as a memo reference. Values are shared and treated as immutable once
// built by a reader; to change a tree, copy the nodes on the path (see tree.h). Not for tensor
// bytes: those stay in the container, see tensor.h. Tested by pickle_test.cc and tree_test.cc.
// Format: docs/format/container.md.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "checkpoint/dtype.h"

namespace checkpoint {

class MappedFile;
struct Node;
using Value = std::shared_ptr<Node>;

// The bytes behind one or more tensors: one `data/<key>` record of a zip, or one block of a legacy
// file.
struct Storage {
  DType dtype = DType::kFloat32;
  int64_t numel = 0;
  std::string key;               // as in the file it was read from; the writer numbers anew
  std::string location = "cpu";  // "cpu", "cuda:0"
  // Where the bytes lie in the file that was read. Null for a storage of a target tree.
  std::shared_ptr<const MappedFile> file;
  int64_t file_offset = 0;  // in bytes; bounds are checked by the container reader
  int64_t bytes() const { return numel * ElementBytes(dtype); }
};
using StoragePtr = std::shared_ptr<Storage>;

struct NoneNode {};
struct BigIntNode {
  std::string little_endian;  // two's complement, as LONG1 / LONG4 hold it; more than 8 bytes
};
struct StringNode {
  std::string text;  // UTF-8; lone surrogates encoded as Python's 'surrogatepass' does
};
struct BytesNode {
  std::string bytes;
};
struct TupleNode {
  std::vector<Value> items;
};
struct ListNode {
  std::vector<Value> items;
};
struct DictNode {
  std::vector<std::pair<Value, Value>> items;  // insertion order, as Python keeps it
};
// Read from protocol 4 only; in protocol 2 a set is an ObjectNode, and so it is written.
struct SetNode {
  std::vector<Value> items;
  bool frozen = false;
};
struct GlobalNode {
  std::string module, name;
};
// One Python object made by REDUCE (callable, args) or NEWOBJ (class, args), then filled by
// APPENDS, SETITEMS, BUILD.
struct ObjectNode {
  enum class How { kReduce, kNewObj };
  How how = How::kReduce;
  Value callable;                              // usually a GlobalNode
  Value args;                                  // a TupleNode
  std::vector<Value> appended;                 // list items (APPEND / APPENDS)
  std::vector<std::pair<Value, Value>> items;  // dict items (SETITEM / SETITEMS): OrderedDict
  Value state;                                 // BUILD; null where there was none
};
// BINPERSID with a torch storage id. `pid` is the tuple as read, or null for a storage of a target.
struct StorageNode {
  StoragePtr storage;
  Value pid;
};

struct Node {
  std::variant<NoneNode, bool, int64_t, BigIntNode, double, StringNode, BytesNode, TupleNode,
               ListNode, DictNode, SetNode, GlobalNode, ObjectNode, StorageNode>
      content;
};

// Makers.
Value MakeNone();
Value MakeBool(bool value);
Value MakeInt(int64_t value);
Value MakeFloat(double value);
Value MakeString(std::string text);
Value MakeTuple(std::vector<Value> items);
Value MakeList(std::vector<Value> items);
Value MakeDict(std::vector<std::pair<Value, Value>> items);
Value MakeGlobal(std::string module, std::string name);
// collections.OrderedDict(), filled with items.
Value MakeOrderedDict(std::vector<std::pair<Value, Value>> items);
// An instance by NEWOBJ with empty args and the given BUILD dict (null: no BUILD): loss scalers,
// fragment_address, argparse.Namespace.
Value MakeInstance(std::string module, std::string name, Value state_dict);
// callable(*args) by REDUCE: ZeroStageEnum, set.
Value MakeReduce(std::string module, std::string name, std::vector<Value> args);
// torch.Size(shape) by REDUCE.
Value MakeTorchSize(const std::vector<int64_t>& shape);

// The content of `value` where it is of kind T; null for another kind and for a null Value.
template <typename T>
const T* As(const Value& value) {
  return value ? std::get_if<T>(&value->content) : nullptr;
}
template <typename T>
T* As(Value& value) {
  return value ? std::get_if<T>(&value->content) : nullptr;
}

}  // namespace checkpoint
