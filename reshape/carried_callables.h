// What the source's object trees would have somebody's torch.load import and call: trees are
// carried into the target as they are, and with them what they name. Tested by
// carried_callables_test.cc.
#pragma once

#include <vector>

#include "checkpoint/status.h"
#include "reshape/inventory.h"

namespace reshape {

// Refuses (kUnsupported) a source that names anything dangerous (checkpoint/callables.h): file,
// place in the tree and callable. Classes that no framework writes become one notice,
// "foreign-classes", that names them all.
checkpoint::Status CheckCallables(const Inventory& source, std::vector<Notice>& notices);

}  // namespace reshape
