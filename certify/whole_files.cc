#include "certify/whole_files.h"

#include <map>
#include <set>

#include "certify/format.h"
#include "certify/parallel.h"
#include "certify/single_laws.h"
#include "checkpoint/container.h"

namespace certify {
namespace {

std::vector<WholeNotice> MissingStates(const Subject& subject) {
  const auto is_trained = [&](size_t i) {
    const oracle::TensorInfo& info = subject.tensors()[i];
    return info.role == oracle::Role::kTrainable && info.alias_of.empty() &&
           NumelOfShape(info.shape) > 0;
  };
  std::set<std::string> kept;
  for (size_t i = 0; i < subject.tensors().size(); ++i)
    if (is_trained(i))
      for (const auto& [state, dtype] : subject.tensors()[i].states) kept.insert(state);
  std::map<std::string, std::vector<std::string>> lacking;
  for (size_t i = 0; i < subject.tensors().size(); ++i)
    if (is_trained(i) && subject.selected[i])
      for (const std::string& state : kept)
        if (subject.tensors()[i].states.count(state) == 0)
          lacking[state].push_back(subject.tensors()[i].name);
  std::vector<WholeNotice> notices;
  for (const auto& [state, names] : lacking)
    notices.push_back(
        {"state-missing",
         Format("{} trainable tensors have no {}, which others have", names.size(), state), names});
  return notices;
}

}  // namespace

checkpoint::Status CheckRecordSums(const Subject& subject, int32_t threads) {
  const std::vector<checkpoint::TorchFile>& files = subject.oracle->torch_files();
  ParallelOptions parallel;
  parallel.threads = threads;
  return ParallelFor(static_cast<int64_t>(files.size()), parallel,
                     [&](int64_t item) -> checkpoint::Status {
                       CK_DO(checkpoint::CheckCrc(files[static_cast<size_t>(item)]));
                       return checkpoint::Done{};
                     });
}

std::vector<WholeNotice> UnprovedFiles(const Subject& subject) {
  WholeNotice notice{"no-checksums", "", {}};
  for (const checkpoint::TorchFile& file : subject.oracle->torch_files())
    if (!file.crc_written) notice.names.push_back(file.file->path().filename().string());
  if (notice.names.empty()) return {};
  notice.text =
      Format("{} files carry no checksums: nothing proves that their content is what was written",
             notice.names.size());
  return {notice};
}

std::vector<WholeNotice> WhatIsMissing(const Subject& subject) {
  std::vector<WholeNotice> notices;
  for (const Finding& finding : CheckComplete(subject).findings)
    if (finding.fault) notices.push_back({finding.kind, finding.text, {}});
  for (WholeNotice& notice : MissingStates(subject)) notices.push_back(std::move(notice));
  return notices;
}

int32_t QkvShards(const oracle::Summary& summary) {
  return summary.format == "deepspeed-universal" ? 1 : summary.tensor_parallel;
}

}  // namespace certify
