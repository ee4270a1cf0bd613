#include "reshape/partial_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <system_error>

#include "checkpoint/file.h"

namespace reshape {
namespace {

namespace fs = std::filesystem;
using checkpoint::Error;
using checkpoint::ErrorCode;
using checkpoint::Result;
using checkpoint::Status;

constexpr char kJournalName[] = ".shardproof-journal";
constexpr std::string_view kJournalTitle = "shardproof journal 1 ";
constexpr int64_t kJournalBytesMax = int64_t{1} << 30;

Error Exists(const fs::path& path, std::string found, std::string advice) {
  return {ErrorCode::kTargetExists, std::move(found), "a target that does not exist", path.string(),
          std::move(advice)};
}

Error IoError(const fs::path& path, const std::error_code& error, std::string expected) {
  return {ErrorCode::kIo, error.message(), std::move(expected), path.string(),
          "Check permissions and free space."};
}

// Regular files below `folder` that no plan of this run writes: then the folder is somebody else's.
Result<std::string> ForeignFile(const fs::path& folder, const std::set<std::string>& own) {
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    if (it->is_directory()) continue;
    const std::string name = it->path().lexically_relative(folder).generic_string();
    // Of a process that was killed while it wrote one of our small files.
    const std::string meant = checkpoint::NameOfTemporary(it->path().filename().string());
    if (!own.contains(name) && (meant.empty() || !own.contains(meant))) return name;
  }
  if (error) return IoError(folder, error, "a readable folder");
  return std::string();
}

// Lines of the journal behind its title; nothing where it is not one of ours. A last line without
// its end was being written.
struct Journal {
  bool ours = false;
  std::string key;
  std::vector<std::string> paths;
};
Journal ReadJournal(const fs::path& path) {
  Journal journal;
  const auto text = checkpoint::ReadSmallFile(path, kJournalBytesMax);
  if (!text.ok()) return journal;
  std::string_view rest = text.value();
  bool first = true;
  for (size_t end = rest.find('\n'); end != std::string_view::npos; end = rest.find('\n')) {
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(end + 1);
    if (first && !line.starts_with(kJournalTitle)) return journal;
    if (first) {
      journal.ours = true;
      journal.key = line.substr(kJournalTitle.size());
    } else {
      journal.paths.emplace_back(line);
    }
    first = false;
  }
  return journal;
}

}  // namespace

Result<std::unique_ptr<PartialFolder>> PartialFolder::Open(
    const fs::path& destination, const std::string& key, const Plan& plan,
    const std::vector<std::string>& text_files) {
  std::unique_ptr<PartialFolder> partial(new PartialFolder);
  partial->destination_ = destination;
  partial->path_ = destination;
  partial->path_ += ".partial";
  partial->journal_ = partial->path_ / kJournalName;
  std::error_code error;
  if (fs::symlink_status(destination, error).type() != fs::file_type::not_found) {
    return Exists(
        destination, "a file or folder",
        "Nothing that exists is overwritten: name another target, or move this one away.");
  }
  fs::create_directories(partial->path_, error);
  if (error) return IoError(partial->path_, error, "a new folder");
  partial->lock_ = ::open(partial->path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (partial->lock_ < 0)
    return IoError(partial->path_, std::error_code(errno, std::generic_category()),
                   "a folder to lock");
  if (::flock(partial->lock_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    return Exists(partial->path_, "another process that writes it",
                  "Wait for it, or name another target.");
  }
  CK_DO(partial->TakeOver(key, plan, text_files));
  return partial;
}

PartialFolder::~PartialFolder() {
  if (lock_ >= 0) ::close(lock_);
}

Status PartialFolder::TakeOver(const std::string& key, const Plan& plan,
                               const std::vector<std::string>& text_files) {
  const Journal journal = ReadJournal(journal_);
  std::error_code error;
  if (!journal.ours) {
    std::set<std::string> own(text_files.begin(), text_files.end());
    own.insert(kJournalName);
    for (const FilePlan& file : plan.files) own.insert(file.path);
    CK_TRY(const std::string foreign, ForeignFile(path_, own));
    if (!foreign.empty()) {
      return Exists(path_, foreign + ", which is not ours",
                    "Move the folder away; it stands where the target grows.");
    }
  }
  if (journal.ours && journal.key == key) {
    const std::set<std::string> noted(journal.paths.begin(), journal.paths.end());
    for (const FilePlan& file : plan.files) {
      const auto bytes = fs::file_size(path_ / file.path, error);
      if (!error && noted.contains(file.path) && static_cast<int64_t>(bytes) == file.bytes)
        finished_.insert(file.path);
    }
  }
  // Everything but the finished files goes: they are written with O_EXCL.
  std::vector<fs::path> leftovers;
  for (fs::recursive_directory_iterator it(path_, error), end; !error && it != end;
       it.increment(error)) {
    const bool keep = it->is_directory() ||
                      finished_.contains(it->path().lexically_relative(path_).generic_string());
    if (!keep) leftovers.push_back(it->path());
  }
  for (const fs::path& leftover : leftovers) {
    if (!error) fs::remove(leftover, error);
  }
  if (error) return IoError(path_, error, "a folder to write anew");
  std::string text = std::string(kJournalTitle) + key + "\n";
  for (const std::string& name : finished_) text += name + "\n";
  return checkpoint::WriteSmallFile(journal_, text, false);
}

void PartialFolder::NoteFinished(const std::string& path) {
  std::ofstream journal(journal_, std::ios::app);
  journal << path << '\n';
}

Status PartialFolder::Appear(bool flush) {
  std::error_code error;
  fs::remove(journal_, error);
  if (error) return IoError(journal_, error, "a journal to take away");
  if (flush) {
    for (fs::recursive_directory_iterator it(path_, error), end; !error && it != end;
         it.increment(error)) {
      if (it->is_directory()) CK_DO(checkpoint::SyncFolder(it->path()));
    }
    CK_DO(checkpoint::SyncFolder(path_));
  }
  if (fs::symlink_status(destination_, error).type() != fs::file_type::not_found) {
    return Exists(destination_, "a file or folder that appeared meanwhile",
                  "Move it away and run the command again.");
  }
  error.clear();
  fs::rename(path_, destination_, error);
  if (error) return IoError(destination_, error, "the target's name for " + path_.string());
  if (!flush) return checkpoint::Done{};
  Status status = checkpoint::SyncFolder(destination_.has_parent_path() ? destination_.parent_path()
                                                                        : fs::path("."));
  // A name that may not last is no target.
  if (!status.ok()) fs::rename(destination_, path_, error);
  return status;
}

}  // namespace reshape
