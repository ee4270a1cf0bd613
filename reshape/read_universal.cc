// DeepSpeed's universal folder: one folder a parameter, full tensors. Names, groups and stages come
// from the model files beside it. Format: docs/format/universal.md.
#include <fmt/format.h>

#include <algorithm>

#include "checkpoint/tree.h"
#include "reshape/source.h"

namespace reshape {
namespace {

using checkpoint::ErrorCode;
using checkpoint::FileName;
using checkpoint::Get;
using checkpoint::Status;
using checkpoint::TensorView;
using checkpoint::Value;

constexpr const char* kStateFiles[] = {"fp32", "exp_avg", "exp_avg_sq"};

Status ReadFile(const std::filesystem::path& path, const std::string& key, bool required,
                Source& source) {
  auto torch = checkpoint::OpenTorchFile(path);
  if (!torch.ok()) {
    if (torch.error().code != ErrorCode::kNotFound) return std::move(torch.error());
    if (!required) return checkpoint::Done{};
    return MakeError(ErrorCode::kMissingFile, "no " + key,
                     "a file for each state of each parameter", path.string(),
                     "Copy the missing file, or convert again.");
  }
  FileName name;
  name.path = path;
  name.name = key;
  name.kind = checkpoint::FileKind::kKnownOther;
  source.inventory.universal_files.emplace(key, SourceFile{name, std::move(torch).value()});
  return checkpoint::Done{};
}

Status ReadParameter(const std::string& name, Source& source) {
  const std::filesystem::path folder = source.inventory.folder.step_folder / "zero" / name;
  auto& tensor = source.full_tensors[name];
  for (const char* state : kStateFiles) {
    const std::string key = fmt::format("zero/{}/{}.pt", name, state);
    CK_DO(ReadFile(folder / fmt::format("{}.pt", state), key, std::string_view(state) == "fp32",
                   source));
    const auto file = source.inventory.universal_files.find(key);
    if (file == source.inventory.universal_files.end()) continue;
    const Value& root = file->second.torch.root;
    CK_TRY(TensorView view,
           checkpoint::DecodeTensor(checkpoint::IsTensor(root) ? root : Get(root, "param"), key));
    tensor.states[std::string_view(state) == "fp32" ? kMasterState : state] = std::move(view);
  }
  const std::string key = fmt::format("zero/{}/step.pt", name);
  CK_DO(ReadFile(folder / "step.pt", key, false, source));
  const auto file = source.inventory.universal_files.find(key);
  if (file != source.inventory.universal_files.end())
    tensor.step = ReadStep(file->second.torch.root);
  for (const auto& [state, view] : tensor.states) {
    if (view.shape == tensor.states.at(kMasterState).shape) continue;
    return MakeError(ErrorCode::kInconsistent,
                     fmt::format("'{}' of shape {}", state, ShapeText(view.shape)),
                     "the shape of fp32, " + ShapeText(tensor.states.at(kMasterState).shape),
                     "zero/" + name, "");
  }
  return checkpoint::Done{};
}

// Groups and their members by param_shapes; full tensors replace what the groups of other wrappers
// hold.
Status ReadRank(const std::vector<Value>& hyper, ModelRank& rank, Source& source) {
  const auto* shapes = checkpoint::SequenceItems(Get(source.ModelRoot(rank), "param_shapes"));
  if (shapes == nullptr) {
    return MakeError(ErrorCode::kInconsistent, "no param_shapes",
                     "param_shapes, which name the parameters of each group",
                     source.ModelFileName(rank), "");
  }
  for (size_t index = 0; index < shapes->size(); ++index) {
    LocalGroup group;
    if (index < hyper.size()) group.hyper_parameters = hyper[index];
    const auto* items = checkpoint::MappingItems((*shapes)[index]);
    for (size_t i = 0; items != nullptr && i < items->size(); ++i) {
      const auto name = checkpoint::AsString((*items)[i].first);
      const auto shape = checkpoint::AsIntList((*items)[i].second);
      if (!name || !shape) {
        return MakeError(ErrorCode::kInconsistent,
                         "param_shapes entry " + checkpoint::Render((*items)[i].second, 60),
                         "a name and a torch.Size", source.ModelFileName(rank), "");
      }
      CK_TRY(const int64_t numel, checkpoint::NumelOf(*shape, *name));
      const auto full = source.full_tensors.find(*name);
      if (full == source.full_tensors.end()) {
        return MakeError(ErrorCode::kMissingFile, "no zero/" + *name,
                         "a folder for each parameter that param_shapes names",
                         source.inventory.folder.step_folder.string(),
                         "Convert again; the folder is not complete.");
      }
      Member member{.name = *name, .numel = numel, .shape = *shape};
      member.step = full->second.step;
      group.step_in_state |= member.step.has_value();
      if (!group.step) group.step = member.step;
      group.members.push_back(std::move(member));
    }
    rank.groups.push_back(std::move(group));
  }
  return checkpoint::Done{};
}

}  // namespace

Status ReadUniversal(Source& source) {
  source.named = true;
  Inventory& inventory = source.inventory;
  for (const std::string& name : inventory.folder.universal_parameters)
    CK_DO(ReadParameter(name, source));
  CK_DO(ReadFile(inventory.folder.step_folder / "zero" / "optimizer_state.pt",
                 "zero/optimizer_state.pt", true, source));
  const Value& optimizer = inventory.universal_files.at("zero/optimizer_state.pt").torch.root;
  const auto* groups = checkpoint::SequenceItems(Get(optimizer, "param_groups"));
  const std::vector<Value> hyper = groups == nullptr ? std::vector<Value>{} : *groups;
  for (ModelRank& rank : source.ranks) CK_DO(ReadRank(hyper, rank, source));
  // The converter also writes folders for buffers and tied names: in fp32, so not as they were. The
  // module has them.
  std::set<std::string> members;
  for (const ModelRank& rank : source.ranks) {
    for (const LocalGroup& group : rank.groups) {
      for (const Member& member : group.members) members.insert(member.name);
    }
  }
  std::erase_if(source.full_tensors,
                [&](const auto& entry) { return !members.contains(entry.first); });
  if (inventory.layout == NameLayout::kPlain) return checkpoint::Done{};
  // The folder holds no weights of a pipeline: its tensors are those that the groups name.
  for (ModelRank& rank : source.ranks) {
    for (const LocalGroup& group : rank.groups) {
      for (const Member& member : group.members) {
        LocalTensor tensor;
        tensor.name = member.name;
        tensor.view.shape = *member.shape;
        tensor.view.strides = checkpoint::ContiguousStrides(tensor.view.shape);
        const auto parts = checkpoint::SplitPipelineName(member.name);
        if (parts && parts->layer) tensor.layer = *parts->layer;
        rank.by_name.emplace(tensor.name, rank.tensors.size());
        rank.tensors.push_back(std::move(tensor));
      }
    }
    // Module order: tied first, then by layer; within one layer the groups' order is all that is
    // known.
    std::stable_sort(rank.tensors.begin(), rank.tensors.end(),
                     [](const LocalTensor& a, const LocalTensor& b) { return a.layer < b.layer; });
    for (size_t i = 0; i < rank.tensors.size(); ++i) rank.by_name[rank.tensors[i].name] = i;
  }
  return checkpoint::Done{};
}

}  // namespace reshape
