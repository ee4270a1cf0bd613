// The plan of a reshape: the composition of source pieces with target placements into strided
// copies, and the layout of every target file. Pure data, made and checked before a byte is
// written: each target byte is written exactly once or declared zero, and nothing is read or
// written out of bounds. Run by execute.h. Tested by plan_test.cc.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/container.h"
#include "reshape/blocks.h"
#include "reshape/inventory.h"
#include "reshape/target.h"

namespace reshape {

// One strided copy between two storages; offsets and strides in elements of each. Types differ
// where the weights change type.
struct CopyRange {
  const checkpoint::Storage* source = nullptr;  // owned by the inventory
  CommonBlock block;
  float factor = 1;     // multiplies each element; 1: bits are moved as they are
  int32_t tensor = -1;  // index into Inventory::tensors, for messages; -1: a storage carried whole
};

// How one storage of a target file comes about.
struct StoragePlan {
  const checkpoint::Storage* target = nullptr;  // owned by the target
  std::vector<CopyRange> copies;                // ascending by first target element
  std::string literal;     // the whole content, where it is made here (step counters)
  int64_t zero_numel = 0;  // elements that nothing fills: alignment padding, made-up rows
};

struct FilePlan {
  std::string path;  // relative to the run folder
  std::filesystem::path
      copied_from;  // not empty: the file is this source file, byte for byte; no storages then
  int64_t bytes = 0;
  checkpoint::TorchFileLayout layout;
  std::vector<StoragePlan> storages;  // in the order of layout.storages()
};

struct Plan {
  std::vector<FilePlan> files;
  int64_t bytes = 0, copies = 0;
  uint32_t digest = 0;  // of everything that decides the bytes written but the trees
  std::vector<std::string> tensor_names;  // by CopyRange::tensor
};

// Composes and checks. Errors: kInconsistent where the source pieces of a state overlap or leave a
// hole (found, expected, where), kMissingFile where a state that the target needs is not in the
// source at all, kIo.
checkpoint::Result<Plan> ComposePlan(const Inventory& source, const Target& target);

}  // namespace reshape
