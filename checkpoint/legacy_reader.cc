#include "checkpoint/legacy_reader.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "checkpoint/limits.h"
#include "checkpoint/storage_id.h"
#include "checkpoint/zip_format.h"

namespace checkpoint {
namespace {

// 0x1950a86a20f9469cfc6c as LONG1 holds it.
const std::string kMagic("\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19", 10);
constexpr int64_t kProtocol = 1001;

const char kCopyAgain[] =
    "The file is damaged or its copy is incomplete: copy it again from where it was written and "
    "compare sizes.";

Error Malformed(std::string found, std::string expected, const std::string& where) {
  return {ErrorCode::kMalformedContainer, std::move(found), std::move(expected), where, kCopyAgain};
}

// One storage that is a window of another one.
struct StorageWindow {
  StoragePtr storage;
  std::string root_key;
  int64_t offset_bytes = 0;
};

class LegacyReader {
 public:
  explicit LegacyReader(const std::shared_ptr<const MappedFile>& file)
      : file_(file), bytes_(file->bytes()), where_(file->path().string()) {}

  Result<TorchFile> Read() {
    CK_DO(ReadFront());
    TorchFile out;
    out.file = file_;
    out.legacy = true;
    const StorageResolver resolve = [this](const Value& pid) { return Resolve(pid); };
    CK_TRY(out.root, NextPickle("root pickle", resolve));
    CK_TRY(const Value keys, NextPickle("storage keys", Refuse()));
    CK_DO(ReadStorages(keys));
    PlaceWindows();
    out.storages = std::move(seen_);
    return out;
  }

 private:
  StorageResolver Refuse() const {
    return [this](const Value&) -> Result<StoragePtr> {
      return Malformed("a storage id outside the root pickle", "none", where_);
    };
  }

  Result<Value> NextPickle(const char* what, const StorageResolver& resolve) {
    const size_t count =
        std::min(bytes_.size() - static_cast<size_t>(at_), static_cast<size_t>(kPickleBytesMax));
    CK_TRY(PickleResult result, ReadPickle(bytes_.subspan(static_cast<size_t>(at_), count), resolve,
                                           where_ + ", " + what));
    at_ += result.bytes_read;
    return std::move(result.root);
  }

  // Magic number, protocol and byte order.
  Status ReadFront() {
    CK_TRY(const Value magic, NextPickle("magic number", Refuse()));
    const BigIntNode* number = As<BigIntNode>(magic);
    if (number == nullptr || number->little_endian != kMagic) {
      return Malformed("a pickle without torch's magic number", "a file that torch.save wrote",
                       where_);
    }
    CK_TRY(const Value protocol, NextPickle("protocol version", Refuse()));
    const int64_t* version = As<int64_t>(protocol);
    if (version == nullptr || *version != kProtocol) {
      return Error{ErrorCode::kUnsupported, "another protocol version", "1001", where_,
                   "Load the file with the torch that wrote it and save it again."};
    }
    CK_TRY(const Value system, NextPickle("system information", Refuse()));
    const DictNode* entries = As<DictNode>(system);
    if (entries == nullptr)
      return Malformed("system information that is no dict", "a dict", where_);
    for (const auto& [key, value] : entries->items) {
      const StringNode* name = As<StringNode>(key);
      if (name == nullptr || name->text != "little_endian") continue;
      const bool* little = As<bool>(value);
      if (little != nullptr && *little) return Done{};
      return Error{ErrorCode::kUnsupported, "big-endian numbers", "little-endian numbers", where_,
                   "Load the file with torch on a little-endian machine and save it again."};
    }
    return Malformed("system information without little_endian", "the byte order", where_);
  }

  Result<StoragePtr> Resolve(const Value& pid) {
    CK_TRY(const StorageId id, ParseStorageId(pid, where_));
    CK_TRY(auto found, roots_.FindOrMake(id, where_));
    if (!id.view) {
      if (seen_keys_.insert(id.key).second) seen_.push_back(found.storage);
      return std::move(found.storage);
    }
    StorageId window_id = id;
    window_id.key = id.view_key;
    window_id.numel = id.view_numel;
    CK_TRY(auto window, windows_by_key_.FindOrMake(window_id, where_));
    if (window.made) {
      windows_.push_back({window.storage, id.key, id.view_offset * ElementBytes(id.dtype)});
      seen_.push_back(window.storage);
    }
    return std::move(window.storage);
  }

  // The tail of the file: for each key in the list's order its numel as int64, then its bytes.
  Status ReadStorages(const Value& keys) {
    const ListNode* list = As<ListNode>(keys);
    if (list == nullptr)
      return Malformed("storage keys that are no list", "a list of strings", where_);
    std::unordered_set<std::string> placed;
    for (const Value& item : list->items) {
      const StringNode* key = As<StringNode>(item);
      const StoragePtr* storage = key == nullptr ? nullptr : roots_.Find(key->text);
      if (storage == nullptr) {
        return Malformed("a storage key that no tensor has", "the keys of the root pickle", where_);
      }
      if (!placed.insert(key->text).second) {
        return Malformed("storage key " + key->text + " twice", "each key once", where_);
      }
      CK_DO(ReadStorage(**storage));
    }
    if (placed.size() != roots_.in_order().size()) {
      return Malformed(std::to_string(placed.size()) + " storages",
                       std::to_string(roots_.in_order().size()) + ", as the root pickle names",
                       where_);
    }
    if (at_ != static_cast<int64_t>(bytes_.size())) {
      return Malformed(std::to_string(static_cast<int64_t>(bytes_.size()) - at_) +
                           " bytes behind the last storage",
                       "none", where_);
    }
    return Done{};
  }

  Status ReadStorage(Storage& storage) {
    const std::string where = where_ + ", storage " + storage.key;
    const int64_t left = static_cast<int64_t>(bytes_.size()) - at_;
    if (left < 8) {
      return Error{ErrorCode::kTruncated, std::to_string(left) + " bytes",
                   "8 bytes, the storage's numel", where, kCopyAgain};
    }
    const int64_t numel = zip::Load<int64_t>(bytes_.data() + at_);
    if (numel != storage.numel) {
      return Malformed(std::to_string(numel) + " elements",
                       std::to_string(storage.numel) + ", as the root pickle says", where);
    }
    if (storage.bytes() > left - 8) {
      return Error{ErrorCode::kTruncated, std::to_string(left - 8) + " bytes",
                   std::to_string(storage.bytes()) + " bytes of tensor data", where, kCopyAgain};
    }
    storage.file = file_;
    storage.file_offset = at_ + 8;
    at_ += 8 + storage.bytes();
    return Done{};
  }

  // Every root has its place by now.
  void PlaceWindows() {
    for (const StorageWindow& window : windows_) {
      const StoragePtr* root = roots_.Find(window.root_key);
      CHECK(root != nullptr, << window.root_key);
      window.storage->file = file_;
      window.storage->file_offset = (*root)->file_offset + window.offset_bytes;
    }
  }

  std::shared_ptr<const MappedFile> file_;
  std::span<const std::byte> bytes_;
  std::string where_;
  int64_t at_ = 0;
  StorageTable roots_, windows_by_key_;
  std::vector<StorageWindow> windows_;
  std::unordered_set<std::string> seen_keys_;
  std::vector<StoragePtr> seen_;  // what tensors use, in order of first appearance
};

}  // namespace

Result<TorchFile> ReadLegacyFile(const std::shared_ptr<const MappedFile>& file) {
  return LegacyReader(file).Read();
}

}  // namespace checkpoint
