// The pieces of one logical tensor's states, over all ranks that hold it. Internal to the source
// side.
#pragma once

#include <map>
#include <string>

#include "reshape/source.h"

namespace reshape {

// The tensor on one rank; every tensor rank of a stage must have it, in one shape. Errors:
// kInconsistent.
checkpoint::Result<const LocalTensor*> LocalOn(const Source& source, const std::string& name,
                                               const ModelRank& rank);

// Appends the states that the optimizers of one stage hold, and the weight where asked. The
// tensor's form (shape, kind, sub-parameters) must be known. Errors: kInconsistent.
struct StateQuery {
  int32_t stage = 0;
  bool with_weight = true;
};
checkpoint::Status AppendStates(const Source& source, const StateQuery& query,
                                const LogicalTensor& tensor,
                                std::map<std::string, StatePieces>& states);

// Fills the states of a tensor that a universal folder holds whole.
checkpoint::Status AppendFullStates(const Source& source, LogicalTensor& tensor);

}  // namespace reshape
