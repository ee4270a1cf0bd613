// What a target makes up, drops, or carries to another place, said in full. Law R7 compares with
// this list.
#include <fmt/format.h>

#include <algorithm>

#include "reshape/target_builder.h"

namespace reshape {
namespace {

using checkpoint::DType;
using checkpoint::Get;
using checkpoint::Parallel;

std::vector<std::string> NamesOf(const Inventory& source, const std::set<int32_t>& tensors) {
  std::vector<std::string> names;
  for (const int32_t tensor : tensors)
    names.push_back(source.tensors[static_cast<size_t>(tensor)].name);
  return names;
}

std::string RowRange(int64_t begin, int64_t end) {
  return end - begin == 1 ? fmt::format("row {}", begin)
                          : fmt::format("rows {} to {}", begin, end - 1);
}

void AddVocabularyNotice(TargetBuilder& builder) {
  // The framework's universal form has no padding rows.
  const int64_t original = builder.source.original_vocabulary_rows;
  const bool cut_off = builder.choice.universal && original > 0;
  const int64_t to = cut_off ? original : builder.choice.vocabulary_rows;
  std::vector<std::string> names;
  int64_t from = to;
  for (const LogicalTensor& tensor : builder.source.tensors) {
    if (tensor.parallel != Parallel::kVocabulary || !tensor.alias_of.empty() ||
        tensor.shape[0] == to) {
      continue;
    }
    from = tensor.shape[0];
    names.push_back(tensor.name);
  }
  if (from < to) {
    builder.Notify(
        "vocabulary-rows-made-up",
        fmt::format(
            "Vocabulary padding grows from {} to {} rows: {} are new and zero in all states.", from,
            to, RowRange(from, to)),
        names);
  } else if (from > to) {
    builder.Notify("vocabulary-rows-dropped",
                   fmt::format("Vocabulary padding shrinks from {} to {} rows: {} are dropped. "
                               "They are trained state.",
                               from, to, RowRange(to, from)),
                   names);
  }
}

void AddStaleCopyNotices(TargetBuilder& builder) {
  std::set<int32_t> stored, needed;
  for (size_t i = 0; i < builder.source.tensors.size(); ++i) {
    if (!builder.source.tensors[i].stale_states.empty()) stored.insert(static_cast<int32_t>(i));
  }
  for (const RankLayout& rank : builder.ranks) {
    for (const RankTensor& local : rank.tensors) {
      if (local.stale) needed.insert(local.tensor);
    }
  }
  if (builder.choice.universal) needed.clear();
  std::set<int32_t> dropped;
  std::set_difference(stored.begin(), stored.end(), needed.begin(), needed.end(),
                      std::inserter(dropped, dropped.end()));
  if (!dropped.empty()) {
    builder.Notify("stale-copy-dropped",
                   "The target has no place for the stale copy on the last stage, which is never "
                   "trained or used.",
                   NamesOf(builder.source, dropped));
  }
  if (needed.empty()) return;
  std::set<int32_t> whole, partly;
  for (const int32_t index : builder.made_up_copies)
    (stored.contains(index) ? partly : whole).insert(index);
  if (!whole.empty()) {
    builder.Notify("stale-copy-made-up",
                   "The source has no copy of its own on the last stage; there the target holds "
                   "the real one's states.",
                   NamesOf(builder.source, whole));
  }
  if (!partly.empty()) {
    builder.Notify("stale-copy-completed",
                   "The source's copy on the last stage lacks states that the target keeps "
                   "(masters); those are the real one's.",
                   NamesOf(builder.source, partly));
  }
}

void AddRankNotices(TargetBuilder& builder) {
  const Topology& from = builder.source.topology;
  const Topology& to = builder.choice.topology;
  if (from.tensor_parallel_size == to.tensor_parallel_size &&
      from.pipeline_parallel_size == to.pipeline_parallel_size)
    return;
  const bool random = checkpoint::Has(SourceRoot(builder.source), "rng_state") ||
                      checkpoint::Has(SourceRoot(builder.source), "random_rng_state");
  std::vector<std::string> mapping;
  std::set<size_t> used;
  for (const RankLayout& rank : builder.ranks) {
    used.insert(builder.SourceRank(rank));
    mapping.push_back(fmt::format("mp_rank_{:02d} <- mp_rank_{:02d}", builder.RankIndex(rank),
                                  builder.SourceRank(rank)));
  }
  const bool repeats = used.size() < builder.ranks.size();
  builder.Notify(
      "rank-mapping",
      std::string("What is not derived (client state") + (random ? ", random number streams" : "") +
          ") is taken over from the source rank that maps by stage and tensor rank." +
          (random && repeats ? " Several ranks begin with the same random number stream." : "") +
          (used.size() < builder.source.model_files.size()
               ? " That of the other source ranks is dropped."
               : ""),
      mapping);
}

void AddFileNotice(TargetBuilder& builder) {
  std::vector<std::string> names;
  for (const checkpoint::FileName& file : builder.source.folder.files) {
    if (file.kind == checkpoint::FileKind::kUnknown) names.push_back(file.name);
  }
  if (names.empty()) return;
  builder.Notify(
      "files-left-behind",
      "Files in the source's step folder that the framework does not write are not carried.",
      names);
}

void AddBatchNotice(TargetBuilder& builder) {
  const BatchChange change = ChangeOfBatch(builder);
  if (change.to.global == 0) return;
  builder.Notify("batch-size",
                 fmt::format("Global batch = micro x accumulation x data ranks: {} = {} x {} x {} "
                             "becomes {} = {} x {} x {}.",
                             change.from.global, change.from.micro, change.from.accumulation,
                             builder.source.topology.data_parallel_size, change.to.global,
                             change.to.micro, change.to.accumulation, builder.data_ranks()));
}

bool IsStage0Half(Wrapper wrapper) {
  return wrapper == Wrapper::kFused || wrapper == Wrapper::kUnfused;
}

void AddOptimizerNotices(TargetBuilder& builder) {
  const Inventory& source = builder.source;
  if (!builder.made_up_states.empty()) {
    builder.Notify("states-made-up",
                   "Parameters without optimizer state share a flat group with others that have "
                   "it: theirs is zero in the target.",
                   NamesOf(source, builder.made_up_states));
  }
  if (source.wrapper != builder.choice.wrapper && IsStage0Half(source.wrapper) &&
      !IsStage0Half(builder.choice.wrapper)) {
    builder.Notify("dummy-step",
                   "The source's wrapper counts one Adam step taken at construction; the count is "
                   "carried as it is.");
  }
  if (source.weight_dtype == DType::kFloat16 && builder.choice.dtype != DType::kFloat16) {
    builder.Notify(
        "loss-scaler-dropped",
        "The target's type needs no loss scaling; the state of the loss scaler is dropped.");
  }
  if (source.elastic && !builder.choice.elastic) {
    builder.Notify(
        "hyper-parameters-declared",
        "Elastic files hold no hyper-parameters; those of the target are the declared ones.");
  }
}

void AddFormNotices(TargetBuilder& builder) {
  const Inventory& source = builder.source;
  if (source.weight_dtype != builder.choice.dtype) {
    builder.Notify("weights-converted",
                   fmt::format("Weights change from {} to {}: the fp32 masters rounded to nearest "
                               "even (frozen parameters: the weights).",
                               checkpoint::DTypeName(source.weight_dtype),
                               checkpoint::DTypeName(builder.choice.dtype)));
  }
  std::vector<std::string> transposed;
  const bool shaped = builder.choice.wrapper == Wrapper::kUnfused ||
                      builder.choice.wrapper == Wrapper::kFp32 ||
                      builder.choice.wrapper == Wrapper::kNone;
  for (const LogicalTensor& tensor : source.tensors) {
    if (!tensor.weight_strides.empty() && tensor.group >= 0 && !shaped)
      transposed.push_back(tensor.name);
  }
  if (!transposed.empty()) {
    builder.Notify("transposed-straightened",
                   "Stored transposed in the source; flat groups hold row-major copies.",
                   transposed);
  }
  if (source.has_fused_qkv && source.qkv_layout && ChangesTensorParallel(source, builder.choice)) {
    builder.Notify("qkv-layout", "Fused query-key-value rows are taken as declared: " +
                                     std::string(checkpoint::QkvLayoutName(*source.qkv_layout)) +
                                     ".");
  }
  if (source.has_fused_qkv && !source.qkv_layout && builder.choice.universal &&
      source.topology.tensor_parallel_size > 1) {
    builder.Notify(
        "qkv-undeclared",
        fmt::format("Fused query-key-value rows are the plain concatenation over {} tensor ranks, "
                    "as the framework's converter "
                    "writes it; loading at another TP is right only for rows per head group.",
                    source.topology.tensor_parallel_size));
  }
  if (CrossesLayouts(source, builder.choice) && !builder.pipeline() &&
      checkpoint::Has(SourceArgs(source), "attn_mask")) {
    builder.Notify("attention-mask-dropped",
                   "args.attn_mask belongs to the pipeline layout; the model code makes it anew.");
  }
  const bool recut = builder.pipeline() && builder.choice.cuts != source.cuts;
  if (recut) {
    std::string cuts;
    for (size_t stage = 0; stage + 1 < builder.choice.cuts.size(); ++stage)
      cuts += (cuts.empty() ? "" : ", ") + std::to_string(builder.choice.cuts[stage]);
    builder.Notify("stage-cuts", "Pipeline stages begin at layers " + cuts +
                                     "; the last ends before layer " +
                                     std::to_string(builder.choice.cuts.back()) + ".");
  }
}

}  // namespace

void AddNotices(TargetBuilder& builder) {
  AddVocabularyNotice(builder);
  AddStaleCopyNotices(builder);
  AddRankNotices(builder);
  AddFileNotice(builder);
  AddBatchNotice(builder);
  AddOptimizerNotices(builder);
  AddFormNotices(builder);
}

}  // namespace reshape
