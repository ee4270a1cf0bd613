// Test support: sources of a few numbers in real files, and one-file targets.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "reshape/inventory.h"
#include "reshape/target.h"

namespace reshape {

// An empty folder of its own below the system's temporary folder.
std::filesystem::path FreshFolder(const std::string& name);

// A storage of fp32 numbers in a torch file that was written and mapped again. The file stays open
// through the storage.
checkpoint::StoragePtr StoredNumbers(const std::filesystem::path& folder, const std::string& name,
                                     const std::vector<float>& numbers);

// All of a storage as numbers, from a torch file's first storages.
std::vector<float> NumbersOf(const std::filesystem::path& file, size_t storage);

// A piece of a box that begins at the origin's `start`.
Piece MakePiece(std::vector<int64_t> start, std::vector<int64_t> extent,
                const checkpoint::StoragePtr& storage, int64_t offset);

// A file whose tree is a list of flat tensors over these storages.
TargetFile FileOf(const std::string& path, const std::vector<checkpoint::StoragePtr>& storages);

}  // namespace reshape
