// How one tensor is cut over tensor ranks: its kind, its full shape, the sub-parameters of a fused
// one.
#include <fmt/format.h>

#include "checkpoint/tree.h"
#include "reshape/shards.h"
#include "reshape/source.h"

namespace reshape {
namespace {

using checkpoint::ErrorCode;
using checkpoint::Fused;
using checkpoint::Get;
using checkpoint::Result;
using checkpoint::Status;

// Rows of q, k and v in the full tensor, from the model's arguments.
Result<std::vector<int64_t>> QueryKeyValueRows(const Inventory& inventory, int64_t rows,
                                               const std::string& name) {
  const checkpoint::Value args = Get(inventory.model_files.front().torch.root, "args");
  const auto heads = checkpoint::AsInt(Get(args, "num_attention_heads"));
  auto groups = checkpoint::AsInt(Get(args, "num_key_value_heads"));
  if (!groups && checkpoint::AsBool(Get(args, "group_query_attention")).value_or(false)) {
    groups = checkpoint::AsInt(Get(args, "num_query_groups"));
  }
  if (!groups) groups = heads;
  const bool sane = heads && *heads > 0 && *groups > 0 && *heads <= rows && *groups <= rows;
  if (!sane || rows % (*heads + 2 * *groups) != 0) {
    return MakeError(ErrorCode::kUndeclared,
                     fmt::format("fused query, key and value of {} rows", rows),
                     "the rows of each: args.num_attention_heads (and num_key_value_heads), or "
                     "sub_parameter_rows in a rules file",
                     name, "Declare sub_parameter_rows for this parameter in a rules file.");
  }
  const int64_t head_rows = rows / (*heads + 2 * *groups);
  return std::vector<int64_t>{*heads * head_rows, *groups * head_rows, *groups * head_rows};
}

Status CheckSubParameters(const Inventory& inventory, const LogicalTensor& tensor, int64_t rows) {
  int64_t sum = 0;
  for (const int64_t part : tensor.sub_parameter_rows) {
    if (part < 0 || part > rows - sum || part % inventory.topology.tensor_parallel_size != 0) {
      return MakeError(ErrorCode::kInconsistent, fmt::format("a sub-parameter of {} rows", part),
                       fmt::format("a multiple of {} tensor ranks, {} rows in all",
                                   inventory.topology.tensor_parallel_size, rows),
                       tensor.name, "Correct the rule of this parameter.");
    }
    sum += part;
  }
  if (tensor.sub_parameter_rows.empty() || sum == rows) return checkpoint::Done{};
  return MakeError(ErrorCode::kInconsistent, fmt::format("sub-parameters of {} rows in all", sum),
                   fmt::format("{} rows", rows), tensor.name,
                   "Correct the rule of this parameter.");
}

Status SetSubParameters(const std::vector<int64_t>& declared, Inventory& inventory,
                        LogicalTensor& tensor) {
  const int64_t rows = tensor.shape.empty() ? 0 : tensor.shape.front();
  tensor.sub_parameter_rows = declared;
  if (tensor.fused == Fused::kQueryKeyValue) {
    inventory.has_fused_qkv = true;
    if (inventory.qkv_layout == checkpoint::QkvLayout::kPerShard && declared.empty()) {
      CK_TRY(tensor.sub_parameter_rows, QueryKeyValueRows(inventory, rows, tensor.name));
    }
  } else if (tensor.fused == Fused::kGatedLinear && declared.empty()) {
    tensor.sub_parameter_rows = {rows / 2, rows - rows / 2};
  }
  return CheckSubParameters(inventory, tensor, rows);
}

}  // namespace

Status Classify(const LocalTensor& local, Source& source, LogicalTensor& tensor) {
  Inventory& inventory = source.inventory;
  const int32_t tensor_size = inventory.topology.tensor_parallel_size;
  CK_TRY(auto kind, FindParallelKind({tensor.name, tensor.canonical}, source));
  if (!kind && tensor_size > 1 && local.alias_of.empty()) {
    return MakeError(ErrorCode::kUnnamedParameter,
                     fmt::format("{} of shape {}", tensor.name, ShapeText(local.view.shape)),
                     "a rule that says how it is cut over tensor ranks",
                     inventory.rules_origin.empty() ? "no rules in force" : inventory.rules_origin,
                     "Name it in a rules file (--rules).");
  }
  if (kind) {
    tensor.parallel = kind->parallel;
    tensor.fused = kind->fused;
  }
  const auto full = source.full_tensors.find(tensor.name);
  if (full != source.full_tensors.end()) {
    tensor.shape = full->second.states.at(kMasterState).shape;
  } else {
    CK_TRY(tensor.shape, FullShape(tensor.parallel, local.view.shape, tensor_size, tensor.name));
  }
  if (kind) CK_DO(SetSubParameters(kind->sub_parameter_rows, inventory, tensor));
  return checkpoint::Done{};
}

void FindUndeclaredGates(Source& source) {
  constexpr std::string_view kUp = ".mlp.dense_h_to_4h.weight", kDown = ".mlp.dense_4h_to_h.weight";
  std::map<std::string, int64_t> widths;  // of the MLP, by the canonical name of its up weight
  for (const LogicalTensor& tensor : source.inventory.tensors) {
    if (!tensor.canonical.ends_with(kDown) || tensor.shape.size() != 2) continue;
    const size_t stem = tensor.canonical.size() - kDown.size();
    widths[tensor.canonical.substr(0, stem) + std::string(kUp)] = tensor.shape[1];
  }
  for (const LogicalTensor& tensor : source.inventory.tensors) {
    const auto width = widths.find(tensor.canonical);
    if (width == widths.end() || tensor.shape.size() != 2) continue;
    const bool declared =
        source.user_rules && checkpoint::FirstParameterRule(*source.user_rules, tensor.canonical,
                                                            source.swiglu) != nullptr;
    const bool plain_column = tensor.parallel == checkpoint::Parallel::kColumn &&
                              tensor.fused == Fused::kNone && tensor.sub_parameter_rows.empty();
    if (!declared && plain_column && tensor.shape[0] == 2 * width->second)
      source.inventory.undeclared_gates.push_back(tensor.name);
  }
}

}  // namespace reshape
