#include "checkpoint/storage_id.h"

#include "checkpoint/limits.h"

namespace checkpoint {
namespace {

const char kNotATorchFile[] =
    "Only files that torch.save wrote from tensors and plain objects can be read.";

Error Malformed(std::string found, std::string expected, const std::string& where) {
  return {ErrorCode::kMalformedTensor, std::move(found), std::move(expected), where,
          kNotATorchFile};
}

// The element type of a storage class; its module is "torch" (or "torch.cuda" in files of early
// versions).
Result<DType> ParseClass(const Value& value, const std::string& where) {
  const GlobalNode* global = As<GlobalNode>(value);
  if (global == nullptr)
    return Malformed("a storage id without a class", "torch.FloatStorage or the like", where);
  const auto dtype = DTypeFromStorageClass(global->name);
  if (!dtype || (global->module != "torch" && global->module != "torch.cuda")) {
    return Malformed(
        "storage class " + global->module + "." + global->name,
        "one of torch.{Float,Half,BFloat16,Double,Long,Int,Short,Char,Byte,Bool}Storage", where);
  }
  return *dtype;
}

// A key is a text in all files of today; the legacy writer's view keys too.
Result<std::string> ParseText(const Value& value, const char* what, const std::string& where) {
  const StringNode* text = As<StringNode>(value);
  if (text == nullptr)
    return Malformed("a storage id whose " + std::string(what) + " is no string", "a string",
                     where);
  return text->text;
}

Result<int64_t> ParseCount(const Value& value, const char* what, const std::string& where) {
  const int64_t* number = As<int64_t>(value);
  if (number == nullptr || *number < 0) {
    return Malformed("a storage id whose " + std::string(what) + " is no count",
                     "an integer of at least 0", where);
  }
  if (*number > kTensorNumelMax) {
    return Error{ErrorCode::kLimitExceeded, std::to_string(*number) + " elements",
                 "at most " + std::to_string(kTensorNumelMax), where, kNotATorchFile};
  }
  return *number;
}

}  // namespace

Result<StorageId> ParseStorageId(const Value& pid, const std::string& where) {
  const TupleNode* tuple = As<TupleNode>(pid);
  const StringNode* kind =
      tuple == nullptr || tuple->items.empty() ? nullptr : As<StringNode>(tuple->items[0]);
  if (kind != nullptr && kind->text == "module") {
    return Error{ErrorCode::kUnsupported, "a pickled nn.Module", "a state dict", where,
                 "Save module.state_dict() instead of the module."};
  }
  if (kind == nullptr || kind->text != "storage" || tuple->items.size() < 5 ||
      tuple->items.size() > 6) {
    return Malformed("a persistent id of another form", "('storage', class, key, location, numel)",
                     where);
  }
  StorageId id;
  CK_TRY(id.dtype, ParseClass(tuple->items[1], where));
  CK_TRY(id.key, ParseText(tuple->items[2], "key", where));
  CK_TRY(id.location, ParseText(tuple->items[3], "location", where));
  CK_TRY(id.numel, ParseCount(tuple->items[4], "numel", where));
  if (tuple->items.size() == 5 || As<NoneNode>(tuple->items[5]) != nullptr) return id;

  const TupleNode* view = As<TupleNode>(tuple->items[5]);
  if (view == nullptr || view->items.size() != 3) {
    return Malformed("view metadata of another form", "None or (key, offset, numel)", where);
  }
  id.view = true;
  CK_TRY(id.view_key, ParseText(view->items[0], "view key", where));
  CK_TRY(id.view_offset, ParseCount(view->items[1], "view offset", where));
  CK_TRY(id.view_numel, ParseCount(view->items[2], "view numel", where));
  if (id.view_offset > id.numel || id.view_numel > id.numel - id.view_offset) {
    return Malformed("a view of " + std::to_string(id.view_numel) + " elements at " +
                         std::to_string(id.view_offset),
                     "one inside its storage of " + std::to_string(id.numel), where);
  }
  return id;
}

Result<StorageTable::Found> StorageTable::FindOrMake(const StorageId& id,
                                                     const std::string& where) {
  const auto known = by_key_.find(id.key);
  if (known != by_key_.end()) {
    const Storage& storage = *known->second;
    if (storage.dtype == id.dtype && storage.numel == id.numel) return Found{known->second, false};
    return Malformed("storage " + id.key + " as " + std::string(DTypeName(id.dtype)) + " of " +
                         std::to_string(id.numel),
                     std::string(DTypeName(storage.dtype)) + " of " +
                         std::to_string(storage.numel) + ", as where it first appears",
                     where);
  }
  auto storage = std::make_shared<Storage>();
  storage->dtype = id.dtype;
  storage->numel = id.numel;
  storage->key = id.key;
  storage->location = id.location;
  by_key_.emplace(id.key, storage);
  in_order_.push_back(storage);
  return Found{std::move(storage), true};
}

const StoragePtr* StorageTable::Find(const std::string& key) const {
  const auto known = by_key_.find(key);
  return known == by_key_.end() ? nullptr : &known->second;
}

}  // namespace checkpoint
