#include <fmt/format.h>

#include <algorithm>

#include "checkpoint/rules.h"
#include "checkpoint/tree.h"
#include "reshape/naming.h"
#include "reshape/resolve.h"
#include "reshape/shards.h"

namespace reshape {
namespace {

using checkpoint::DType;
using checkpoint::Error;
using checkpoint::ErrorCode;
using checkpoint::Get;
using checkpoint::Status;
using checkpoint::Value;

// Attributes of a Megatron model that tensor ranks must divide.
struct Divisible {
  const char* key;
  const char* what;
};
constexpr Divisible kDivisible[] = {
    {"num_attention_heads", "attention heads"},
    {"num_key_value_heads", "key/value heads"},
    {"hidden_size", "hidden size"},
    {"ffn_hidden_size", "feed-forward size"},
};

Status CheckDimensions(const Inventory& source, const ResolvedTarget& target) {
  const int32_t ranks = target.topology.tensor_parallel_size;
  const Value args = SourceArgs(source);
  for (const Divisible& divisible : kDivisible) {
    const auto count = checkpoint::AsInt(Get(args, divisible.key));
    if (!count || *count % ranks == 0) continue;
    return Unreachable(fmt::format("{} {}", *count, divisible.what),
                       fmt::format("a multiple of {} tensor ranks", ranks),
                       "Choose a --tp that divides it.");
  }
  for (const LogicalTensor& tensor : source.tensors) {
    if (!tensor.alias_of.empty()) continue;
    ShardForm form{tensor.parallel, tensor.shape, tensor.sub_parameter_rows};
    if (tensor.parallel == checkpoint::Parallel::kVocabulary)
      form.full_shape[0] = target.vocabulary_rows;
    auto shape = ShardShape(form, ranks, tensor.name);
    if (!shape.ok()) return std::move(shape.error());
  }
  return checkpoint::Done{};
}

// Without Megatron's rules, each parameter needs one that names it before it can be cut.
Status CheckNamed(const Inventory& source) {
  for (const LogicalTensor& tensor : source.tensors) {
    if (tensor.role == Role::kBuffer || !tensor.alias_of.empty()) continue;
    bool named = false;
    for (const checkpoint::ParameterRule& rule : source.rules.parameters) {
      CK_TRY(const bool matches, checkpoint::MatchesWhole(rule.canonical, tensor.canonical));
      named = named || matches;
    }
    if (named) continue;
    return Error{ErrorCode::kUnnamedParameter, "no parallel rule for " + tensor.name,
                 "a rule for every parameter", tensor.name,
                 "Declare how it is split with --rules, or keep --tp as it is."};
  }
  return checkpoint::Done{};
}

// With one stage nothing in the files says which later layer uses a tied module again.
Status CheckTiedUses(const Inventory& source, const ResolvedTarget& target) {
  if (target.layout != NameLayout::kPipeline || target.topology.pipeline_parallel_size == 1)
    return checkpoint::Done{};
  for (const LogicalTensor& tensor : source.tensors) {
    if (!tensor.name.starts_with("tied_modules.") || tensor.layers.size() > 1) continue;
    return Error{ErrorCode::kUndeclared, "no layer that uses " + tensor.name + " a second time",
                 "the layers of a tied module", tensor.name,
                 "Declare them under \"tied\" in --rules, or keep --pp 1."};
  }
  return checkpoint::Done{};
}

// A bare optimizer holds nothing but moments: before its first step nothing in its files says which
// parameter is in which group.
Status CheckBareMoments(const Inventory& source, const ResolvedTarget& target) {
  if (target.wrapper != Wrapper::kFp32 || source.wrapper == Wrapper::kFp32) {
    return checkpoint::Done{};
  }
  for (const LogicalTensor& tensor : source.tensors) {
    if (tensor.group >= 0 && tensor.alias_of.empty() && !tensor.states.contains("exp_avg")) {
      return Unreachable(
          "no moments of " + tensor.name + ": no optimizer step was taken with it",
          "moments of every trained parameter, which a bare fp32 optimizer tells its "
          "groups by",
          "Choose --zero 1 or 2, or --dtype fp16 or bf16.");
    }
  }
  return checkpoint::Done{};
}

bool HasLayerCounts(const Inventory& source) {
  return source.megatron && source.transformer_layers > 0;
}

}  // namespace

Status CheckTensorParallel(const Inventory& source, const ResolvedTarget& target) {
  if (!ChangesTensorParallel(source, target)) return CheckDimensions(source, target);
  CK_DO(CheckNamed(source));
  CK_DO(CheckDimensions(source, target));
  if (!source.undeclared_gates.empty()) {
    const std::string& name = source.undeclared_gates.front();
    return Error{ErrorCode::kUndeclared,
                 fmt::format("a change of TP with {} weights like {}, twice as wide as the MLP is, "
                             "and nothing that says they are gated",
                             source.undeclared_gates.size(), name),
                 "gated-linear, or plain columns", name,
                 "Declare it in --rules: \"parallel\": \"column\", with \"fused\": "
                 "\"gated-linear\" where each shard is its gate rows, then its up rows (SwiGLU)."};
  }
  if (!source.has_fused_qkv || source.qkv_layout) return checkpoint::Done{};
  return Error{ErrorCode::kUndeclared,
               "a change of TP with fused query-key-value weights whose row order is not declared",
               "per-head-group, per-shard or per-head-inner", "query_key_value",
               "Declare it with --qkv-layout or in --rules: most Megatron code since 2021 is "
               "per-head-group."};
}

Status CheckPipeline(const Inventory& source, const ResolvedTarget& target) {
  const int32_t stages = target.topology.pipeline_parallel_size;
  if (target.layout == NameLayout::kPlain && stages > 1) {
    return Unreachable(fmt::format("{} pipeline stages in the plain layout", stages),
                       "one, or the pipeline layout", "Add --layout pipeline, or choose --pp 1.");
  }
  if (target.layout == NameLayout::kPipeline && target.topology.zero_stage == 2) {
    return Unreachable("ZeRO stage 2 with the pipeline layout",
                       "stage 0 or 1: the framework's pipeline engine refuses stage 2",
                       "Choose --zero 1, or --layout plain with --pp 1.");
  }
  if (HasLayerCounts(source) && stages > source.transformer_layers) {
    return Unreachable(
        fmt::format("{} pipeline stages", stages),
        fmt::format("at most {}, one transformer layer each", source.transformer_layers),
        "Choose a smaller --pp.");
  }
  if (!CrossesLayouts(source, target)) return CheckTiedUses(source, target);
  if (source.rules.names.empty() || !HasLayerCounts(source)) {
    return Unreachable("a model whose names in the other layout no rule gives",
                       "a Megatron model, or the layout it has", "Leave --layout out.");
  }
  const bool untied = std::any_of(
      source.tensors.begin(), source.tensors.end(),
      [](const LogicalTensor& tensor) { return tensor.canonical == "output_layer.weight"; });
  const Naming naming{&source.rules, source.transformer_layers, !untied};
  for (const LogicalTensor& tensor : source.tensors) {
    if (!tensor.alias_of.empty() || NameInLayout(naming, target.layout, tensor.canonical)) continue;
    return Unreachable(tensor.name + ", which has no name in the other layout",
                       "names for all tensors", "Leave --layout out, or give the name in --rules.");
  }
  return checkpoint::Done{};
}

Status CheckWrapper(const Inventory& source, const ResolvedTarget& target) {
  const int32_t stage = target.topology.zero_stage;
  const bool pipeline = target.layout == NameLayout::kPipeline;
  const bool half = checkpoint::Is16Bit(target.dtype), bf16 = target.dtype == DType::kBFloat16;
  bool fits = true;
  switch (target.wrapper) {
    case Wrapper::kZero:
      fits = stage >= 1;
      break;
    case Wrapper::kBf16:
      fits = bf16 && (stage == 1 || (stage == 0 && pipeline));
      break;
    case Wrapper::kFused:
    case Wrapper::kUnfused:
      fits = stage == 0 && half && !(bf16 && pipeline);
      break;
    case Wrapper::kFp32:
      fits = stage == 0 && !half;
      break;
    case Wrapper::kUniversal:
      fits = false;
      break;
    case Wrapper::kNone:
      fits = source.wrapper == Wrapper::kNone;
      break;
  }
  if (!fits) {
    return Unreachable(
        fmt::format("this optimizer wrapper at stage {} in {}{}", stage,
                    checkpoint::DTypeName(target.dtype), pipeline ? " with a pipeline" : ""),
        "a wrapper that the framework uses there",
        "Leave --wrapper out: zero is for stages 1 and 2, bf16 for bf16 at stage 1, fused and "
        "unfused for 16 bits at stage 0.");
  }
  CK_DO(CheckBareMoments(source, target));
  if (target.universal && stage == 0) {
    return Unreachable("a universal folder at stage 0", "stage 1 or 2", "Leave --zero out.");
  }
  if (source.wrapper == Wrapper::kNone || target.elastic || target.wrapper == Wrapper::kNone)
    return checkpoint::Done{};
  if (HasHyperParameters(source)) return checkpoint::Done{};
  return Error{
      ErrorCode::kUndeclared, "no hyper-parameters: elastic files do not hold them",
      "a dictionary for each parameter group", "param_groups",
      "Give them with --param-groups FILE, or choose ZeRO 1 or 2, which keep the elastic form."};
}

std::string WhyUnreachable(const Inventory& source, const TargetSpec& spec) {
  const auto resolved = Resolve(source, spec);
  return resolved.ok() ? "" : resolved.error().found + "; expected " + resolved.error().expected;
}

std::vector<Topology> LegalTargets(const Inventory& source, const TargetSpec& spec,
                                   int32_t ranks_max) {
  std::vector<Topology> topologies;
  const auto wanted = [](const std::optional<int32_t>& fixed, int32_t value) {
    return !fixed || *fixed == value;
  };
  for (int32_t stage = 0; stage <= 2; ++stage) {
    if (!wanted(spec.zero_stage, stage)) continue;
    for (int32_t tensor = 1; tensor <= ranks_max; ++tensor) {
      if (!wanted(spec.tensor_parallel_size, tensor)) continue;
      for (int32_t pipeline = 1; pipeline <= ranks_max / tensor; ++pipeline) {
        if (!wanted(spec.pipeline_parallel_size, pipeline)) continue;
        TargetSpec one = spec;
        one.zero_stage = stage;
        one.tensor_parallel_size = tensor;
        one.pipeline_parallel_size = pipeline;
        one.data_parallel_size = spec.data_parallel_size.value_or(
            1);  // legal for one count of data ranks, legal for all
        if (!WhyUnreachable(source, one).empty()) continue;
        for (int32_t data = 1; data <= ranks_max / tensor / pipeline; ++data) {
          if (wanted(spec.data_parallel_size, data))
            topologies.push_back({tensor, pipeline, data, stage});
        }
      }
    }
  }
  return topologies;
}

}  // namespace reshape
