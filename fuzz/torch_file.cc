#include <sys/mman.h>
#include <unistd.h>

#include <set>

#include "checkpoint/container.h"
#include "checkpoint/tensor.h"
#include "checkpoint/walk.h"
#include "fuzz/entry.h"

namespace fuzz {
namespace {

// Every tensor of the tree, each node once.
void DecodeTensors(const checkpoint::Value& root) {
  std::vector<checkpoint::Value> waiting = {root};
  std::set<const checkpoint::Node*> seen;
  while (!waiting.empty()) {
    const checkpoint::Value node = waiting.back();
    waiting.pop_back();
    if (!node || !seen.insert(node.get()).second) continue;
    if (checkpoint::IsTensor(node)) {
      const auto view = checkpoint::DecodeTensor(node, "input");
      constexpr int64_t kNumelMax = 64;
      if (view.ok()) {
        static_cast<void>(checkpoint::StorageBytes(*view.value().storage).size());
        static_cast<void>(checkpoint::ReadNumbers(view.value(), kNumelMax, "input").ok());
      }
    }
    for (size_t i = 0; const checkpoint::Value* child = checkpoint::ChildAt(*node, i); ++i)
      waiting.push_back(*child);
  }
}

}  // namespace

void TorchFile(Bytes input) {
  // A file in memory: it has a path, and nothing is left behind after a crash.
  const int descriptor = ::memfd_create("fuzz", MFD_CLOEXEC);
  CHECK(descriptor >= 0);
  CHECK(::write(descriptor, input.data(), input.size()) == static_cast<ssize_t>(input.size()));
  {
    const auto file = checkpoint::OpenTorchFile("/proc/self/fd/" + std::to_string(descriptor));
    if (file.ok()) {
      static_cast<void>(checkpoint::CheckCrc(file.value()).ok());
      DecodeTensors(file.value().root);
    }
  }
  ::close(descriptor);
}

}  // namespace fuzz
