#include "reshape/target.h"

#include <fmt/format.h>

#include <algorithm>

#include "checkpoint/file.h"
#include "reshape/target_builder.h"

namespace reshape {
namespace {

using checkpoint::Error;
using checkpoint::ErrorCode;
using checkpoint::Result;
using checkpoint::Status;

constexpr std::string_view kUniversalSuffix = "_universal";
constexpr int64_t kRunFileBytesMax = 1 << 20;

// "global_step4": a universal folder has the suffix, its native form has not.
std::string StepFolderName(const Inventory& source, bool universal) {
  std::string tag = source.folder.tag;
  if (source.folder.universal && tag.ends_with(kUniversalSuffix))
    tag.resize(tag.size() - kUniversalSuffix.size());
  return universal ? tag + std::string(kUniversalSuffix) : tag;
}

// Names become folders below zero/; what has no optimizer state is kept in the model files alone,
// which hold no module where layer files do.
Status CheckUniversalFolder(const TargetBuilder& builder) {
  for (const LogicalTensor& tensor : builder.source.tensors) {
    if (!builder.pipeline() || tensor.group >= 0 || !tensor.alias_of.empty()) continue;
    return Error{ErrorCode::kUnsupported,
                 tensor.name + (tensor.role == Role::kBuffer ? ", a buffer of a pipeline layer"
                                                             : ", frozen in a pipeline layer"),
                 "trained parameters only: a universal folder has no layer files", tensor.name,
                 "Choose a native target, which keeps it."};
  }
  for (const TargetName& name : builder.names) {
    if (name.name.find('/') == std::string::npos && name.name != "." && name.name != ".." &&
        !name.name.empty())
      continue;
    return Error{ErrorCode::kUnsupported, "a parameter named \"" + name.name + "\"",
                 "names that can be a folder", name.name, "Choose a native target."};
  }
  return checkpoint::Done{};
}

// An optimizer needs a master for everything in its groups: 16-bit weights alone have none.
Status CheckMasters(const Inventory& source, const ResolvedTarget& choice) {
  if (choice.wrapper == Wrapper::kNone) return checkpoint::Done{};
  for (const LogicalTensor& tensor : source.tensors) {
    if (tensor.group < 0 || !tensor.alias_of.empty() || tensor.states.contains(kMaster)) continue;
    const auto weight = tensor.states.find(kWeight);
    if (weight != tensor.states.end() && weight->second.dtype == checkpoint::DType::kFloat32)
      continue;
    return Error{ErrorCode::kMissingFile, "no fp32 master of " + tensor.name,
                 "a master for every trained parameter", tensor.name,
                 "Restore the optimizer files of the source, or save it anew with them."};
  }
  return checkpoint::Done{};
}

bool HasRunFile(const Inventory& source, const char* name) {
  const auto& files = source.folder.run_files;
  return std::find(files.begin(), files.end(), name) != files.end();
}

}  // namespace

size_t TargetBuilder::RankIndex(const RankLayout& rank) const {
  return static_cast<size_t>(rank.stage) *
             static_cast<size_t>(choice.topology.tensor_parallel_size) +
         static_cast<size_t>(rank.tensor_rank);
}

size_t TargetBuilder::SourceRank(const RankLayout& rank) const {
  const Topology& from = source.topology;
  const Topology& to = choice.topology;
  const int64_t stage = int64_t{static_cast<int32_t>(rank.stage)} * from.pipeline_parallel_size /
                        to.pipeline_parallel_size;
  const int64_t tensor_rank = int64_t{static_cast<int32_t>(rank.tensor_rank)} *
                              from.tensor_parallel_size / to.tensor_parallel_size;
  return static_cast<size_t>(stage * from.tensor_parallel_size + tensor_rank);
}

checkpoint::Value TargetBuilder::Version() const {
  checkpoint::Value version = checkpoint::Get(SourceRoot(source), "ds_version");
  return version != nullptr ? version : checkpoint::MakeNone();
}

void TargetBuilder::Notify(std::string kind, std::string text, std::vector<std::string> about) {
  target.notices.push_back({std::move(kind), std::move(text), std::move(about)});
}

void AddIdenticalFiles(TargetBuilder& builder) {
  for (const checkpoint::FileName& file : builder.source.folder.files) {
    builder.target.files.push_back({builder.PathOf(file.name), nullptr, file.path});
  }
  for (const auto& [name, file] : builder.source.universal_files) {
    builder.target.files.push_back({builder.PathOf(name), nullptr, file.name.path});
  }
}

Status AddTextFiles(TargetBuilder& builder) {
  const Inventory& source = builder.source;
  Target& target = builder.target;
  if (HasRunFile(source, "zero_to_fp32.py")) {
    target.files.push_back(
        {"zero_to_fp32.py", nullptr, source.folder.run_folder / "zero_to_fp32.py"});
  }
  constexpr const char* kIterationFile = "latest_checkpointed_iteration.txt";
  if (HasRunFile(source, kIterationFile)) {
    CK_TRY(std::string text,
           checkpoint::ReadSmallFile(source.folder.run_folder / kIterationFile, kRunFileBytesMax));
    target.text_files.emplace_back(kIterationFile, std::move(text));
  }
  target.text_files.emplace_back(target.universal ? "latest_universal" : "latest",
                                 target.step_folder_name);
  return checkpoint::Done{};
}

Result<Target> LayOutTarget(const Inventory& source, const TargetSpec& spec) {
  CK_TRY(const ResolvedTarget choice, Resolve(source, spec));
  CK_TRY(std::vector<TargetName> names, NameTensors(source, choice));
  CK_TRY(std::vector<RankLayout> ranks, LayOutRanks(source, choice, names));
  TargetBuilder builder{source, choice, std::move(names), std::move(ranks), {}, {}, {}, {}};
  Target& target = builder.target;
  target.topology = choice.topology;
  target.wrapper = choice.wrapper;
  target.layout = choice.layout;
  target.weight_dtype = choice.dtype;
  target.universal = choice.universal;
  target.step_folder_name = StepFolderName(source, choice.universal);
  target.notices = choice.notices;
  if (choice.identical) {
    AddIdenticalFiles(builder);
  } else {
    CK_DO(CheckMasters(source, choice));
    if (choice.universal) {
      CK_DO(CheckUniversalFolder(builder));
      CK_DO(AddUniversalFolder(builder));
    } else if (builder.pipeline()) {
      AddLayerFiles(builder);
    }
    CK_DO(AddModelFiles(builder));
    AddNotices(builder);
  }
  CK_DO(AddTextFiles(builder));
  return std::move(builder.target);
}

}  // namespace reshape
