#include "reshape/carried_callables.h"

#include <set>

#include "checkpoint/callables.h"
#include "reshape/source_files.h"

namespace reshape {

checkpoint::Status CheckCallables(const Inventory& source, std::vector<Notice>& notices) {
  std::set<std::string> foreign;
  for (const SourceFile* file : SourceFiles(source)) {
    for (const checkpoint::NamedCallable& found : checkpoint::FindCallables(file->torch.root)) {
      if (found.kind == checkpoint::CallableKind::kForeign) {
        foreign.insert(found.name);
        continue;
      }
      return checkpoint::Error{
          checkpoint::ErrorCode::kUnsupported, found.name,
          "no function that runs commands or code, opens files or loads other pickles",
          file->name.path.string() + ", at " + found.path,
          "Do not load this file with torch.load: whoever wrote it can run what they like there. "
          "Nothing was run here, and nothing of it is copied into a target. If you trust it, save "
          "it again without this entry."};
    }
  }
  if (!foreign.empty()) {
    notices.push_back(
        {"foreign-classes",
         "Classes or functions that no framework writes are carried as they are; loading the "
         "target imports them, as loading the source does.",
         {foreign.begin(), foreign.end()}});
  }
  return checkpoint::Done{};
}

}  // namespace reshape
