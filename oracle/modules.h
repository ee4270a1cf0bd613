// Weights and buffers as the model's own files hold them. Internal to oracle/.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "oracle/draft.h"

namespace oracle {

// One tensor of a module file. `key` is its name inside a layer file, the whole name in a plain
// module.
struct ModuleTensor {
  std::string key;
  int64_t layer = -1;
  int32_t tensor = 0;
  Stored stored;
};

struct ModuleList {
  std::vector<ModuleTensor>
      tensors;  // by layer number, then in the order of the file, then by tensor rank
  std::vector<int64_t> layers;  // numbers of layer files, ascending
};

checkpoint::Result<ModuleList> ListModules(Draft& draft);

// Names that optimizer files and param_shapes say, with the tensor-parallel local shape where one
// is said.
struct KnownNames {
  std::map<std::string, std::vector<int64_t>> shapes;  // empty shape list entry: {-1}
};
KnownNames ListKnownNames(const Source& source);

// Which layers are saved once but used under `tied_modules.<key>`: layer number -> key.
std::map<int64_t, std::string> TiedLayersByName(const ModuleList& modules, const KnownNames& known);

// Adds weights, buffers and aliases to the draft under their names. Names of buffers are in the
// model files.
checkpoint::Status AddModules(Draft& draft, const ModuleList& modules,
                              const std::map<int64_t, std::string>& tied);

}  // namespace oracle
