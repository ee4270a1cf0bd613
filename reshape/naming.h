// Names of the two layouts and their canonical form, by the name rules. Pure text and numbering.
// Format: docs/format/megatron.md. Tested by naming_test.cc.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "checkpoint/rules.h"
#include "reshape/topology.h"

namespace reshape {

// What turns names into one another.
struct Naming {
  const checkpoint::Rules* rules = nullptr;
  int64_t transformer_layers = 0;
  bool tied_embedding =
      true;  // one embedding on the first and last stage; else an output layer of its own
};

// "3.mlp.dense_h_to_4h.weight" -> "layers.1.mlp.dense_h_to_4h.weight"; nothing for a name that no
// rule knows or whose number is not one of this model's.
std::optional<std::string> CanonicalName(const Naming& naming, NameLayout layout,
                                         std::string_view name);

// The way back. Nothing where no rule knows the canonical name, or where the layout has no such
// name.
std::optional<std::string> NameInLayout(const Naming& naming, NameLayout layout,
                                        std::string_view canonical);

// Pipeline layer number of a canonical name: the file it lies in. Nothing where the rules have no
// numbering.
std::optional<int64_t> LayerOfCanonical(const Naming& naming, std::string_view canonical);

}  // namespace reshape
