// The universal folder of the framework: one folder a parameter, and what is common in one file.
// Format: docs/format/universal.md.
#include <algorithm>
#include <iterator>

#include "reshape/target_builder.h"

namespace reshape {
namespace {

using checkpoint::Get;
using checkpoint::Has;
using checkpoint::MakeBool;
using checkpoint::MakeInt;
using checkpoint::MakeString;
using checkpoint::Parallel;
using checkpoint::Result;
using checkpoint::Status;
using checkpoint::TensorView;
using checkpoint::Value;

constexpr const char* kLeftOut[] = {"base_optimizer_state", "param_slice_mappings",
                                    "single_partition_of_fp32_groups"};

// A whole logical tensor as a rank of one, with the target's vocabulary padding in the storage.
RankTensor WholeTensor(const TargetBuilder& builder, size_t index) {
  const LogicalTensor& tensor = builder.source.tensors[index];
  ShardForm form{tensor.parallel, tensor.shape, tensor.sub_parameter_rows};
  if (tensor.parallel == Parallel::kVocabulary) form.full_shape[0] = builder.choice.vocabulary_rows;
  RankTensor local;
  local.tensor = static_cast<int32_t>(index);
  local.shape = form.full_shape;
  local.slabs = SlabsOfShard(form, TensorRank{0}, 1);
  return local;
}

// Rows of one pattern's sub-parameters for the loader, where they are neither one nor two equal
// halves.
Value SubParameterShape(const LogicalTensor& tensor, const std::string& name) {
  std::vector<Value> rows, shape;
  for (const int64_t count : tensor.sub_parameter_rows) rows.push_back(MakeInt(count));
  shape.push_back(checkpoint::MakeTuple(std::move(rows)));
  for (size_t i = 1; i < tensor.shape.size(); ++i) shape.push_back(MakeInt(tensor.shape[i]));
  Entries state;
  Append(state, "patterns", checkpoint::MakeList({MakeString(name)}));
  Append(state, "shape", checkpoint::MakeTuple(std::move(shape)));
  Append(state, "partition_dim", MakeInt(0));
  return checkpoint::MakeInstance("deepspeed.checkpoint.universal_checkpoint", "SubparamShape",
                                  checkpoint::MakeDict(std::move(state)));
}

Value StateFile(TargetBuilder& builder, const RankTensor& whole, const std::string& state) {
  const LogicalTensor& tensor = builder.Tensor(whole);
  Entries entries;
  const bool halves = tensor.fused == checkpoint::Fused::kGatedLinear;
  if (tensor.parallel == Parallel::kRow) {
    Append(entries, "cat_dim", MakeInt(1));
  } else if (tensor.parallel != Parallel::kReplicated) {
    Append(entries, "cat_dim", MakeInt(0));
    if (halves) Append(entries, "param_n_sub_params", MakeInt(2));
    if (!halves && tensor.sub_parameter_rows.size() > 1) {
      Append(entries, "sub_param_shape", SubParameterShape(tensor, builder.NameOf(whole)));
    }
    if (tensor.parallel == Parallel::kVocabulary) Append(entries, "vocab_tensor", MakeBool(true));
  }
  TensorView view = OwnTensor(builder, whole, state, false);
  if (tensor.parallel == Parallel::kVocabulary && builder.source.original_vocabulary_rows > 0) {
    view.shape[0] =
        std::min(view.shape[0],
                 builder.source.original_vocabulary_rows);  // the storage keeps the padding rows
  }
  Append(entries, "param", checkpoint::MakeTensor(view));
  return checkpoint::MakeDict(std::move(entries));
}

void AddFile(TargetBuilder& builder, const std::string& name, Value root) {
  TargetFile file;
  file.path = builder.PathOf("zero/" + name);
  file.root = std::move(root);
  builder.target.files.push_back(std::move(file));
}

// What one rank's optimizer dictionary holds besides the partitions, and the groups'
// hyper-parameters.
Status AddOptimizerState(TargetBuilder& builder) {
  const size_t placements = builder.target.placements.size(),
               literals = builder.target.literals.size();
  CK_TRY(const Value dict, PartitionedOptimizer(builder, builder.ranks.front(), 0));
  // The partitions themselves are not written.
  builder.target.placements.resize(placements);
  builder.target.literals.resize(literals);
  Entries entries;
  for (const auto& [key, value] : *checkpoint::MappingItems(dict)) {
    const std::string name = checkpoint::AsString(key).value_or("");
    if (std::find(std::begin(kLeftOut), std::end(kLeftOut), name) == std::end(kLeftOut))
      entries.emplace_back(key, value);
  }
  const Value groups = checkpoint::GetPath(dict, {"base_optimizer_state", "param_groups"});
  Append(entries, "param_groups", groups);
  AddFile(builder, "optimizer_state.pt", checkpoint::MakeDict(std::move(entries)));
  return checkpoint::Done{};
}

}  // namespace

Status AddUniversalFolder(TargetBuilder& builder) {
  for (size_t i = 0; i < builder.source.tensors.size(); ++i) {
    const LogicalTensor& tensor = builder.source.tensors[i];
    if (tensor.group < 0 || !tensor.alias_of.empty()) continue;
    const RankTensor whole = WholeTensor(builder, i);
    const std::string folder = builder.NameOf(whole) + "/";
    for (const std::string& moment : MomentNames(builder.source, {whole.tensor})) {
      AddFile(builder, folder + moment + ".pt", StateFile(builder, whole, moment));
    }
    Value master = StateFile(builder, whole, kMaster);
    AddFile(builder, folder + "fp32.pt", std::move(master));
    CK_TRY(const std::optional<StepValue> step, StepOfGroup(builder, {whole.tensor}, tensor.group));
    if (step) AddFile(builder, folder + "step.pt", StepTree(builder, *step));
  }
  return AddOptimizerState(builder);
}

}  // namespace reshape
