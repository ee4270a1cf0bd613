// What a pickle would import and call. We never do; but a tree that we carry from file to file is
// loaded by somebody's torch.load in the end. Each class or function that a tree names is known
// (what the frameworks write and cannot do harm), foreign (a user's own class, as args may hold),
// or dangerous (runs commands or code, opens files, loads other pickles). The table is an
// allow-list for the known and a deny-list for the dangerous: foreign code may be harmful too, and
// only its owner can tell. Tested by callables_test.cc. Format: docs/format/container.md.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/value.h"

namespace checkpoint {

enum class CallableKind { kKnown, kForeign, kDangerous };

// Of `module.name` as a pickle names it, Python 2 spellings included.
CallableKind KindOfCallable(std::string_view module, std::string_view name);

struct NamedCallable {
  std::string name;  // "posix.system"; "an object that was made by a call" where one is called
  std::string path;  // of its first place in the tree: "args.hooks[2]"
  CallableKind kind = CallableKind::kForeign;
};

// Those of the tree that are not known, each once, in the order of the tree, called or only named.
// Linear in nodes.
std::vector<NamedCallable> FindCallables(const Value& root);

}  // namespace checkpoint
