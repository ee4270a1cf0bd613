// All files of a source that are open, in a stable order.
#pragma once

#include <vector>

#include "reshape/inventory.h"

namespace reshape {

inline std::vector<const SourceFile*> SourceFiles(const Inventory& source) {
  std::vector<const SourceFile*> files;
  for (const SourceFile& file : source.model_files) files.push_back(&file);
  for (const auto& rank : source.optim_files) {
    for (const SourceFile& file : rank) files.push_back(&file);
  }
  for (const auto& [position, file] : source.layer_files) files.push_back(&file);
  for (const auto& [name, file] : source.universal_files) files.push_back(&file);
  return files;
}

}  // namespace reshape
