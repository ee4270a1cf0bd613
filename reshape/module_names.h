// The tensors of a module's state dict under their full names. Used by the source side only.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/value.h"

namespace reshape {

struct NamedValue {
  std::string name;         // "language_model.embedding.word_embeddings.weight"
  checkpoint::Value value;  // a tensor
};

// Nested mappings joined by '.', in order; whatever is no tensor (extra states, None) is left out.
std::vector<NamedValue> FlattenModule(const checkpoint::Value& module);

}  // namespace reshape
