// Equality of object trees with the bytes of their tensors. Internal to certify/. Tested by
// tree_bits_test.cc.
#pragma once

#include <vector>

#include "checkpoint/value.h"

namespace certify {

// Storages below a value, each once, in order of first appearance.
std::vector<checkpoint::StoragePtr> StoragesBelow(const checkpoint::Value& root);
// SameStructure, and the bytes of the storages are equal pairwise. A null Value equals only a null
// Value.
bool SameTree(const checkpoint::Value& a, const checkpoint::Value& b);

}  // namespace certify
