// The persistent ids of torch storages: ('storage', torch.FloatStorage, KEY, LOCATION, numel[,
// view]). Shared by the zip and the legacy reader. Tested by container_test.cc and
// legacy_reader_test.cc. Format: docs/format/container.md.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "checkpoint/status.h"
#include "checkpoint/value.h"

namespace checkpoint {

struct StorageId {
  DType dtype = DType::kFloat32;
  std::string key, location;
  int64_t numel = 0;
  // Legacy only: this storage is [view_offset, view_offset + view_numel) of the storage `key`, and
  // has its own key.
  bool view = false;
  std::string view_key;
  int64_t view_offset = 0, view_numel = 0;  // in elements
};

// `numel` is not negative, and numel * ElementBytes fits. Errors: kMalformedTensor (unknown storage
// class, bad numbers), kUnsupported (a pickled module class), kLimitExceeded.
Result<StorageId> ParseStorageId(const Value& pid, const std::string& where);

// Storages by key, in order of first appearance: equal keys give the same StoragePtr, and must
// agree in type and numel.
class StorageTable {
 public:
  // The storage of this id; made where the key is new (then `made` is true). Errors:
  // kMalformedTensor.
  struct Found {
    StoragePtr storage;
    bool made = false;
  };
  Result<Found> FindOrMake(const StorageId& id, const std::string& where);
  const StoragePtr* Find(const std::string& key) const;
  std::vector<StoragePtr>& in_order() { return in_order_; }

 private:
  std::unordered_map<std::string, StoragePtr> by_key_;  // never iterated
  std::vector<StoragePtr> in_order_;
};

}  // namespace checkpoint
