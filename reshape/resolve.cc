#include "reshape/resolve.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "checkpoint/limits.h"
#include "checkpoint/tree.h"
#include "reshape/layer_partition.h"

namespace reshape {
namespace {

using checkpoint::DType;
using checkpoint::Error;
using checkpoint::ErrorCode;
using checkpoint::Get;
using checkpoint::GetPath;
using checkpoint::Result;
using checkpoint::Status;
using checkpoint::Value;

// First version of the framework whose stage-0 fp16 wrappers leave the loss unscaled and still
// divide the gradients by the scale.
constexpr FrameworkVersion kUnscaledLossSince{0, 19, 0};

// A slip of the finger must not become minutes of work and a full disk. A thousand nodes of eight
// write 16,000 files.
constexpr int64_t kTargetFilesMax = 200'000;

Status CheckFileCount(const Inventory& source, const TargetSpec& spec, const Topology& to) {
  const int64_t model_ranks = int64_t{to.tensor_parallel_size} * to.pipeline_parallel_size;
  const int64_t layers = static_cast<int64_t>(source.layer_files.size()) /
                         std::max<int64_t>(1, source.topology.tensor_parallel_size);
  int64_t files = model_ranks + layers * to.tensor_parallel_size;
  if (!spec.universal && to.zero_stage > 0) files += model_ranks * to.data_parallel_size;
  if (files <= kTargetFilesMax) return checkpoint::Done{};
  return Error{ErrorCode::kLimitExceeded,
               fmt::format("TP {} x PP {} x DP {} at stage {}: {} files", to.tensor_parallel_size,
                           to.pipeline_parallel_size, to.data_parallel_size, to.zero_stage, files),
               fmt::format("at most {} files in a target", kTargetFilesMax), "--tp, --pp, --dp",
               "Check the sizes for a slip."};
}

Status ResolveTopology(const Inventory& source, const TargetSpec& spec, ResolvedTarget& target) {
  const Topology& from = source.topology;
  Topology& to = target.topology;
  to.tensor_parallel_size = spec.tensor_parallel_size.value_or(from.tensor_parallel_size);
  to.pipeline_parallel_size = spec.pipeline_parallel_size.value_or(from.pipeline_parallel_size);
  to.data_parallel_size = spec.data_parallel_size.value_or(from.data_parallel_size);
  to.zero_stage = spec.zero_stage.value_or(from.zero_stage);
  if (spec.universal && !spec.zero_stage) to.zero_stage = std::max(1, to.zero_stage);
  for (const int32_t count :
       {to.tensor_parallel_size, to.pipeline_parallel_size, to.data_parallel_size}) {
    if (count >= 1 && count <= checkpoint::kRanksMax) continue;
    return Error{ErrorCode::kUsage, std::to_string(count),
                 "sizes from 1 to " + std::to_string(checkpoint::kRanksMax), "--tp, --pp, --dp",
                 "Give whole numbers of ranks."};
  }
  if (to.zero_stage >= 0 && to.zero_stage <= 2) return CheckFileCount(source, spec, to);
  return Error{ErrorCode::kUnsupported, "ZeRO stage " + std::to_string(to.zero_stage),
               "stage 0, 1 or 2", "--zero",
               "Choose stage 2, or let the framework convert to stage 3 when it loads."};
}

bool WantsFp32Accumulation(const Inventory& source) {
  const Value type = GetPath(SourceRoot(source), {"ds_config", "data_types", "grad_accum_dtype"});
  const std::string text = checkpoint::AsString(type).value_or("");
  return text == "fp32" || text == "float32";
}

// Whether a universal source stands for a BF16_Optimizer run: its dictionary names no stage.
bool IsBf16Optimizer(const Inventory& source) {
  if (source.wrapper == Wrapper::kBf16) return true;
  return source.wrapper == Wrapper::kUniversal && source.weight_dtype == DType::kBFloat16 &&
         !checkpoint::Has(SourceOptimizerDict(source, 0), "zero_stage");
}

Wrapper DefaultWrapper(const Inventory& source, const ResolvedTarget& target) {
  const bool bf16 = target.dtype == DType::kBFloat16;
  if (source.wrapper == Wrapper::kNone) return Wrapper::kNone;
  if (target.topology.zero_stage == 2) return Wrapper::kZero;
  if (target.topology.zero_stage == 1) {
    if (!bf16) return Wrapper::kZero;
    if (IsBf16Optimizer(source)) return Wrapper::kBf16;
    const bool partitioned =
        source.wrapper == Wrapper::kZero || source.wrapper == Wrapper::kUniversal;
    if (partitioned && source.weight_dtype == DType::kBFloat16) return Wrapper::kZero;
    return WantsFp32Accumulation(source) ? Wrapper::kBf16 : Wrapper::kZero;
  }
  if (target.dtype == DType::kFloat32) return Wrapper::kFp32;
  if (bf16 && target.layout == NameLayout::kPipeline) return Wrapper::kBf16;
  if (source.wrapper == Wrapper::kFused || source.wrapper == Wrapper::kUnfused)
    return source.wrapper;
  return target.fused_base_optimizer ? Wrapper::kFused : Wrapper::kUnfused;
}

int64_t VocabularyRowsOfSource(const Inventory& source) {
  for (const LogicalTensor& tensor : source.tensors) {
    if (tensor.parallel == checkpoint::Parallel::kVocabulary && !tensor.shape.empty())
      return tensor.shape[0];
  }
  return 0;
}

// Padded rows in the target: as the source where TP stays; else the framework's rule, from its
// args.
Status ResolveVocabulary(const Inventory& source, ResolvedTarget& target) {
  const int64_t rows = VocabularyRowsOfSource(source);
  const int64_t ranks = target.topology.tensor_parallel_size;
  if (rows == 0) return checkpoint::Done{};
  const bool cut_off =
      source.original_vocabulary_rows > 0 && rows == source.original_vocabulary_rows;
  if (!ChangesTensorParallel(source, target) &&
      !(source.wrapper == Wrapper::kUniversal && cut_off)) {
    target.vocabulary_rows = rows;
    return checkpoint::Done{};
  }
  const Value args = SourceArgs(source);
  const auto fixed = checkpoint::AsInt(Get(args, "pad_vocab_size_to"));
  const auto divisor = checkpoint::AsInt(Get(args, "make_vocab_size_divisible_by"));
  const int64_t needed = source.original_vocabulary_rows;
  if (fixed && *fixed >= needed && *fixed > 0 && *fixed % ranks == 0) {
    target.vocabulary_rows = *fixed;
  } else if (divisor && *divisor > 0 && *divisor <= checkpoint::kTensorNumelMax && needed > 0) {
    const int64_t multiple = *divisor * ranks;
    target.vocabulary_rows = (needed + multiple - 1) / multiple * multiple;
  } else if (rows % ranks == 0) {
    target.vocabulary_rows = rows;
  } else {
    return Unreachable(fmt::format("{} vocabulary rows and no make_vocab_size_divisible_by", rows),
                       fmt::format("rows that {} tensor ranks divide", ranks),
                       "Choose another --tp.");
  }
  return checkpoint::Done{};
}

Status GivenCuts(const Inventory& source, const TargetSpec& spec, ResolvedTarget& target) {
  target.cuts = spec.cuts;
  const auto stages = static_cast<size_t>(target.topology.pipeline_parallel_size);
  // Layers without parameters may follow the last one that has some; no file says how many.
  int64_t filled = 0;
  for (const LogicalTensor& tensor : source.tensors) {
    for (const int64_t layer : tensor.layers) filled = std::max(filled, layer + 1);
  }
  const int64_t end = std::max(filled, source.cuts.empty() ? 0 : source.cuts.back());
  // Inner boundaries alone are enough: the first is 0, the last behind all layers.
  if (target.cuts.size() + 1 == stages) {
    target.cuts.insert(target.cuts.begin(), 0);
    target.cuts.push_back(end);
  }
  if (target.cuts.size() == stages + 1 && target.cuts.back() >= filled)
    target.cuts.back() = std::max(target.cuts.back(), end);
  const bool ascending = std::adjacent_find(target.cuts.begin(), target.cuts.end(),
                                            std::greater_equal<>()) == target.cuts.end();
  if (target.cuts.size() == stages + 1 && ascending && target.cuts.front() == 0 &&
      target.cuts.back() >= end) {
    return checkpoint::Done{};
  }
  return Error{
      ErrorCode::kUsage, fmt::format("{}", fmt::join(spec.cuts, ",")),
      fmt::format("{} ascending layer numbers, the first 0 and the last {} or more, or only "
                  "the {} between them",
                  stages + 1, filled, stages - 1),
      "--cuts", "Stage s owns the layers from cut s up to, not including, cut s + 1."};
}

Status ResolveCuts(const Inventory& source, const TargetSpec& spec, ResolvedTarget& target) {
  const int32_t stages = target.topology.pipeline_parallel_size;
  if (target.layout != NameLayout::kPipeline) {
    if (spec.cuts.empty()) return checkpoint::Done{};
    return Error{ErrorCode::kUsage, "--cuts with the plain layout", "a pipeline target", "--cuts",
                 "Leave --cuts out."};
  }
  if (!spec.cuts.empty()) return GivenCuts(source, spec, target);
  const bool was_pipeline = source.layout == NameLayout::kPipeline;
  if (was_pipeline && stages == source.topology.pipeline_parallel_size && !source.cuts.empty()) {
    target.cuts = source.cuts;
    return checkpoint::Done{};
  }
  if (static_cast<int32_t>(source.rules.cuts.size()) == stages + 1) {
    target.cuts = source.rules.cuts;
    return checkpoint::Done{};
  }
  const std::string method = checkpoint::AsString(Get(SourceArgs(source), "pp_partition_method"))
                                 .value_or("type:transformer");
  if (source.transformer_layers > 0 && source.rules.numbering &&
      method.starts_with("type:transformer")) {
    TransformerLayers layers{*source.rules.numbering, source.transformer_layers};
    layers.cast_at_end = target.dtype != DType::kFloat32;
    layers.count_embeddings = method.find("embedding") != std::string::npos;
    target.cuts = TransformerCuts(layers, stages);
    return checkpoint::Done{};
  }
  if (stages == 1 && was_pipeline && !source.cuts.empty()) {
    target.cuts = {0, source.cuts.back()};
    return checkpoint::Done{};
  }
  return Error{ErrorCode::kUndeclared,
               fmt::format("{} pipeline stages and no rule that cuts this model", stages),
               "stage boundaries as layer numbers", "--pp",
               "Declare them with --cuts, or keep --pp as it is."};
}

void ResolveFlatOrder(const Inventory& source, ResolvedTarget& target) {
  if (target.wrapper != Wrapper::kZero) return;
  const Value config = GetPath(SourceRoot(source), {"ds_config", "zero_optimization"});
  target.round_robin =
      checkpoint::AsBool(Get(config, "round_robin_gradients")).value_or(source.round_robin);
  if (checkpoint::AsBool(Get(config, "parameter_alignment")).value_or(source.parameter_alignment)) {
    target.parameter_alignment_numel =
        16 / checkpoint::ElementBytes(target.dtype);  // starts at multiples of 16 bytes
  }
}

bool IsUnscaled(Wrapper wrapper, DType dtype, const FrameworkVersion& version) {
  return dtype == DType::kFloat16 && (wrapper == Wrapper::kFused || wrapper == Wrapper::kUnfused) &&
         version >= kUnscaledLossSince;
}

// Without ZeRO files and with one stage, no file names the layers that share a tied module.
Status CheckTiedModules(const Inventory& source, const ResolvedTarget& target) {
  const bool nameless = target.wrapper == Wrapper::kFused || target.wrapper == Wrapper::kUnfused ||
                        target.wrapper == Wrapper::kFp32;
  if (source.megatron || target.universal || !nameless || target.layout != NameLayout::kPipeline ||
      target.topology.pipeline_parallel_size > 1) {
    return checkpoint::Done{};
  }
  for (const LogicalTensor& tensor : source.tensors) {
    if (!tensor.name.starts_with("tied_modules.")) continue;
    return Unreachable(tensor.name + " on one pipeline stage without ZeRO",
                       "a target whose files say which layers are tied",
                       "Choose --zero 1, or two stages or more.");
  }
  return checkpoint::Done{};
}

Status ResolveMoments(const Inventory& source, const TargetSpec& spec, ResolvedTarget& target) {
  const FrameworkVersion version = SourceVersion(source);
  const bool from = IsUnscaled(source.wrapper, source.weight_dtype, version);
  const bool to = IsUnscaled(target.wrapper, target.dtype, version);
  const bool rescale = spec.moments == Moments::kRescale;
  if (from == to || target.wrapper == Wrapper::kNone) {
    if (rescale) {
      target.notices.push_back(
          {"nothing-to-rescale",
           "--moments rescale changed nothing: the moments of both sides have one scale. It is for "
           "fp16 without ZeRO on one side alone.",
           {}});
    }
    return checkpoint::Done{};
  }
  const Value dict = SourceOptimizerDict(source, 0);
  Value scale = Get(dict, "cur_scale");
  if (scale == nullptr) scale = GetPath(dict, {"loss_scaler", "cur_scale"});
  const double factor = checkpoint::AsNumber(scale).value_or(1);
  if (!(factor > 1) || factor > 1e30) return checkpoint::Done{};
  target.unscaled_factor = factor;
  // A judge can tell a rescale from a fault only where the type stays.
  if (rescale && target.dtype != source.weight_dtype) {
    return Error{ErrorCode::kUsage, "--moments rescale together with another type",
                 "fp16 on both sides", "--moments",
                 "Reshape with --moments rescale first, then change the type."};
  }
  if (rescale) target.moment_factor = static_cast<float>(from ? factor : 1 / factor);
  target.notices.push_back(
      {"unscaled-moments",
       fmt::format("fp16 without ZeRO does not scale the loss in this version and divides the "
                   "gradients by the scale all the same: exp_avg {} by the loss scale {} (less "
                   "the clip factor), exp_avg_sq by its square {}. The moments were {}.",
                   from ? "of the source is smaller than the gradients of the target"
                        : "of the source is larger than the gradients of the target",
                   factor, factor * factor,
                   rescale ? (from ? "multiplied by both" : "divided by both")
                   : target.dtype == source.weight_dtype
                       ? "carried as they are; --moments rescale changes them"
                       : "carried as they are; to change them, reshape in fp16 with --moments "
                         "rescale before changing the type"),
       {}});
  return checkpoint::Done{};
}

// Declared hyper-parameters are a wish to leave the elastic form, which has no place for them.
Status ResolveElastic(const Inventory& source, const TargetSpec& spec, ResolvedTarget& target) {
  const bool declared = source.elastic && HasHyperParameters(source);
  const bool can = target.wrapper == Wrapper::kZero && !target.universal;
  if (spec.elastic && declared) {
    return Error{ErrorCode::kUsage, "--param-groups together with --elastic",
                 "one of them: elastic files hold no hyper-parameters", "--param-groups",
                 "Leave one of them out."};
  }
  if (spec.elastic && !can) {
    return Error{ErrorCode::kUsage, "--elastic without ZeRO files",
                 "a native target of the zero wrapper at stage 1 or 2", "--elastic",
                 "Leave --elastic out, or add --zero 1 or 2 (and --wrapper zero for bf16)."};
  }
  target.elastic = can && (spec.elastic || (source.elastic && !declared));
  if (source.elastic && target.elastic) {
    target.notices.push_back({"elastic-kept",
                              "The source is elastic and so is the target: neither holds "
                              "hyper-parameters. --param-groups FILE gives them and leaves the "
                              "elastic form.",
                              {}});
  }
  return checkpoint::Done{};
}

bool IsIdentical(const Inventory& source, const ResolvedTarget& target) {
  const bool from_universal = source.wrapper == Wrapper::kUniversal;
  if (target.universal != from_universal || target.moment_factor != 1 ||
      target.elastic != source.elastic) {
    return false;
  }
  if (!from_universal && target.wrapper != source.wrapper) return false;
  return target.topology == source.topology && target.dtype == source.weight_dtype &&
         target.layout == source.layout &&
         (target.layout == NameLayout::kPlain || target.cuts == source.cuts);
}

}  // namespace

const Value& SourceRoot(const Inventory& source) {
  static const Value kNull;
  return source.model_files.empty() ? kNull : source.model_files.front().torch.root;
}

Value SourceArgs(const Inventory& source) { return Get(SourceRoot(source), "args"); }

Value SourceOptimizerDict(const Inventory& source, size_t model_rank) {
  if (source.wrapper == Wrapper::kUniversal) {
    const auto found = source.universal_files.find("zero/optimizer_state.pt");
    return found == source.universal_files.end() ? nullptr : found->second.torch.root;
  }
  if (source.wrapper == Wrapper::kZero || source.wrapper == Wrapper::kBf16) {
    if (model_rank >= source.optim_files.size() || source.optim_files[model_rank].empty())
      return nullptr;
    return Get(source.optim_files[model_rank].front().torch.root, "optimizer_state_dict");
  }
  return model_rank < source.model_files.size()
             ? Get(source.model_files[model_rank].torch.root, "optimizer")
             : nullptr;
}

bool HasHyperParameters(const Inventory& source) {
  return std::all_of(source.groups.begin(), source.groups.end(), [](const Group& group) {
    return checkpoint::MappingItems(group.hyper_parameters) != nullptr;
  });
}

bool HasFusedBaseOptimizer(const Inventory& source) {
  for (const Group& group : source.groups) {
    if (checkpoint::Has(group.hyper_parameters, "bias_correction")) return true;
    if (checkpoint::MappingItems(group.hyper_parameters) != nullptr) return false;
  }
  // Elastic files hold no groups: the form of the step tells, FusedAdam's is a number.
  for (const LogicalTensor& tensor : source.tensors) {
    if (tensor.step) return !tensor.step->tensor;
  }
  return false;
}

FrameworkVersion SourceVersion(const Inventory& source) {
  const std::string text = checkpoint::AsString(Get(SourceRoot(source), "ds_version")).value_or("");
  FrameworkVersion version;
  const char* at = text.data();
  const char* end = text.data() + text.size();
  for (int64_t* part : {&version.major, &version.minor, &version.patch}) {
    const auto [next, error] = std::from_chars(at, end, *part);
    if (error != std::errc() || next == end || *next != '.') break;
    at = next + 1;
  }
  return version;
}

bool CrossesLayouts(const Inventory& source, const ResolvedTarget& target) {
  return source.layout != target.layout;
}

bool ChangesTensorParallel(const Inventory& source, const ResolvedTarget& target) {
  return source.topology.tensor_parallel_size != target.topology.tensor_parallel_size;
}

Error Unreachable(std::string found, std::string expected, std::string advice) {
  return {ErrorCode::kUnreachableTarget, std::move(found), std::move(expected), "target topology",
          std::move(advice)};
}

Result<ResolvedTarget> Resolve(const Inventory& source, const TargetSpec& spec) {
  ResolvedTarget target;
  CK_DO(ResolveTopology(source, spec, target));
  target.dtype = spec.dtype.value_or(source.weight_dtype);
  if (target.dtype != DType::kFloat32 && !checkpoint::Is16Bit(target.dtype)) {
    return Error{ErrorCode::kUsage, std::string(checkpoint::DTypeName(target.dtype)),
                 "fp16, bf16 or fp32", "--dtype", "Choose one of them."};
  }
  target.layout = spec.layout.value_or(source.layout);
  target.universal = spec.universal;
  target.fused_base_optimizer = HasFusedBaseOptimizer(source);
  target.wrapper = spec.wrapper.value_or(DefaultWrapper(source, target));
  CK_DO(ResolveElastic(source, spec, target));
  CK_DO(CheckWrapper(source, target));
  CK_DO(CheckPipeline(source, target));
  CK_DO(CheckTiedModules(source, target));
  CK_DO(ResolveCuts(source, spec, target));
  CK_DO(ResolveVocabulary(source, target));
  CK_DO(CheckTensorParallel(source, target));
  ResolveFlatOrder(source, target);
  CK_DO(ResolveMoments(source, spec, target));
  target.identical = IsIdentical(source, target);
  return target;
}

}  // namespace reshape
