// Children of a node by number: the base of every iterative walk over an object tree (check of what
// was read, comparison, writing). Walks visit nodes, never paths: a node shared by a million places
// is visited once. Not for meaning. Tested through pickle_test.cc and tree_test.cc.
#pragma once

#include <cstddef>
#include <cstdint>

#include "checkpoint/value.h"

namespace checkpoint {

// Child `index` of `node`, or null behind the last one. Order: items of lists, tuples and sets;
// key, value, key, value... of dicts; callable, args, list items, dict items, state of objects; pid
// of storages. A child itself may be a null Value only for the state of an object that has none and
// the pid of a storage that was not read.
const Value* ChildAt(const Node& node, size_t index);

// UTF-8 as Python's 'surrogatepass' accepts it: encoded surrogates allowed, overlong forms and
// values above U+10FFFF not.
bool IsUtf8WithSurrogates(const char* begin, size_t count);

}  // namespace checkpoint
