// The folder in which a target grows, and the journal of what is finished in it. Keeps two runs
// apart, lets an interrupted one be continued, and makes the target appear whole or not at all.
// Tested by reshape_test.cc.
#pragma once

#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/status.h"
#include "reshape/plan.h"

namespace reshape {

class PartialFolder {
 public:
  // Makes or takes over `destination` + ".partial". `key` says what is being written: a journal
  // with another key begins anew. Errors: kTargetExists
  // (`destination` exists; another process writes it; the folder holds files that are not ours),
  // kIo.
  static checkpoint::Result<std::unique_ptr<PartialFolder>> Open(
      const std::filesystem::path& destination, const std::string& key, const Plan& plan,
      const std::vector<std::string>& text_files);
  ~PartialFolder();
  PartialFolder(const PartialFolder&) = delete;
  PartialFolder& operator=(const PartialFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // Files of the plan that an earlier run finished.
  const std::set<std::string>& finished() const { return finished_; }
  // Notes a file as finished and flushed. A note that cannot be written is no error: the file is
  // then written again.
  void NoteFinished(const std::string& path);
  // Takes the journal out and gives the folder its name; after an error it has not got it. Errors:
  // kTargetExists, kIo.
  checkpoint::Status Appear(bool flush);

 private:
  PartialFolder() = default;
  checkpoint::Status TakeOver(const std::string& key, const Plan& plan,
                              const std::vector<std::string>& text_files);

  std::filesystem::path destination_, path_, journal_;
  std::set<std::string> finished_;
  int lock_ = -1;
};

}  // namespace reshape
