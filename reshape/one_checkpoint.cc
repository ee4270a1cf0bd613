// Is the source one checkpoint? What must be equal over ranks, before anything is written: a
// reshape of files of two steps would have to choose between them. Replicated weights are compared
// by the sums that their files carry, so that nothing is read for it.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "checkpoint/tree.h"
#include "reshape/source.h"

namespace reshape {
namespace {

using checkpoint::Error;
using checkpoint::ErrorCode;
using checkpoint::Get;
using checkpoint::Status;
using checkpoint::Value;

// Of model files: one value for the whole run. The engine writes the first ones on every rank; a
// user may hand over the others on some ranks alone, but not with two values.
constexpr std::string_view kEngineEntries[] = {"global_steps", "skipped_steps", "global_samples",
                                               "lr_scheduler", "ds_version"};
constexpr std::string_view kSharedEntries[] = {"iteration", "tokens", "checkpoint_version"};
// Of optimizer files.
constexpr std::string_view kOptimizerEntries[] = {"loss_scaler", "dynamic_loss_scale", "zero_stage",
                                                  "ds_version"};
// What is compared byte by byte of a replica that is no whole record of its file.
constexpr int64_t kBytesCompared = 1 << 20;

const char* const kAdvice =
    "The files are not of one checkpoint. Restore this one from where it was written; `shardproof "
    "check` lists all that differs.";

std::string Text(std::string_view key, const Value& value) {
  if (value == nullptr) return fmt::format("no {}", key);
  return fmt::format("{} {}", key, checkpoint::Render(value, 80));
}

// The same entry of two files; an absent one is a null Value.
Status CompareEntry(std::string_view key, const std::pair<const SourceFile*, Value>& first,
                    const std::pair<const SourceFile*, Value>& other) {
  const bool both = first.second != nullptr && other.second != nullptr;
  if (both ? checkpoint::SameStructure(first.second, other.second) : first.second == other.second)
    return checkpoint::Done{};
  return MakeError(ErrorCode::kInconsistent, Text(key, other.second),
                   fmt::format("{}, as in {}", Text(key, first.second), first.first->name.name),
                   other.first->name.path.string(), kAdvice);
}

Status CompareModelFiles(const Inventory& inventory) {
  const SourceFile& first = inventory.model_files.front();
  for (const SourceFile& file : inventory.model_files) {
    const Value &a = first.torch.root, &b = file.torch.root;
    for (const std::string_view key : kEngineEntries)
      CK_DO(CompareEntry(key, {&first, Get(a, key)}, {&file, Get(b, key)}));
    const bool megatron = checkpoint::Has(a, "args") || checkpoint::Has(b, "args");
    for (const std::string_view key : kSharedEntries) {
      const bool both = checkpoint::Has(a, key) && checkpoint::Has(b, key);
      if (both || megatron) CK_DO(CompareEntry(key, {&first, Get(a, key)}, {&file, Get(b, key)}));
    }
  }
  return checkpoint::Done{};
}

// A model file's number is its writer's place among the ranks of one model in the order of their
// global ranks, so args.rank rises with it. Tools may give every file one rank's args.
Status CompareWriters(const Inventory& inventory) {
  std::vector<int64_t> ranks;
  for (const SourceFile& file : inventory.model_files) {
    const auto rank = checkpoint::AsInt(checkpoint::GetPath(file.torch.root, {"args", "rank"}));
    if (!rank) return checkpoint::Done{};
    ranks.push_back(*rank);
  }
  if (std::set<int64_t>(ranks.begin(), ranks.end()).size() < 2) return checkpoint::Done{};
  for (size_t i = 1; i < ranks.size(); ++i) {
    if (ranks[i] > ranks[i - 1]) continue;
    return MakeError(
        ErrorCode::kInconsistent,
        fmt::format("args.rank {} in {}", ranks[i], inventory.model_files[i].name.name),
        fmt::format("more than {}, which {} says: model files are numbered in the "
                    "order of their writers' ranks",
                    ranks[i - 1], inventory.model_files[i - 1].name.name),
        inventory.model_files[i].name.path.string(),
        "A file has another's name, or lies here twice: give each its own.");
  }
  return checkpoint::Done{};
}

Status CompareOptimizerFiles(const Inventory& inventory) {
  if (inventory.optim_files.empty() || inventory.optim_files.front().empty())
    return checkpoint::Done{};
  const SourceFile& first = inventory.optim_files.front().front();
  const Value a = Get(first.torch.root, "optimizer_state_dict");
  for (const std::vector<SourceFile>& files : inventory.optim_files) {
    for (const SourceFile& file : files) {
      const Value b = Get(file.torch.root, "optimizer_state_dict");
      for (const std::string_view key : kOptimizerEntries)
        CK_DO(CompareEntry(key, {&first, Get(a, key)}, {&file, Get(b, key)}));
    }
  }
  return checkpoint::Done{};
}

// Where a storage is the whole payload of a record, what the file says its sum is.
class Sums {
 public:
  explicit Sums(const Inventory& inventory) {
    for (const SourceFile& file : inventory.model_files) Add(file.torch);
    for (const auto& [key, file] : inventory.layer_files) Add(file.torch);
  }

  std::optional<uint32_t> Of(const checkpoint::TensorView& view) const {
    const checkpoint::Storage& storage = *view.storage;
    if (view.offset != 0 || view.numel() != storage.numel || !view.IsContiguous())
      return std::nullopt;
    const auto found = records_.find({storage.file.get(), storage.file_offset});
    if (found == records_.end() || found->second->payload_bytes != storage.bytes())
      return std::nullopt;
    return found->second->crc32;
  }

 private:
  void Add(const checkpoint::TorchFile& torch) {
    if (!torch.crc_written) return;
    for (const checkpoint::Record& record : torch.records)
      records_[{torch.file.get(), record.payload_offset}] = &record;
  }

  std::map<std::pair<const checkpoint::MappedFile*, int64_t>, const checkpoint::Record*> records_;
};

bool SameBytes(const checkpoint::TensorView& a, const checkpoint::TensorView& b) {
  if (!a.IsContiguous() || !b.IsContiguous()) return true;  // left to the certificate
  const int64_t width = checkpoint::ElementBytes(a.storage->dtype);
  const int64_t bytes = std::min(kBytesCompared, a.numel() * width);
  return std::memcmp(checkpoint::StorageBytes(*a.storage).data() + a.offset * width,
                     checkpoint::StorageBytes(*b.storage).data() + b.offset * width,
                     static_cast<size_t>(bytes)) == 0;
}

// Those that the first tensor rank of a stage holds as well.
Status CompareReplicasOf(const ModelRank& first, const ModelRank& rank,
                         const std::map<std::string, const LogicalTensor*>& replicated,
                         const Sums& sums) {
  for (const LocalTensor& tensor : rank.tensors) {
    const auto known = replicated.find(tensor.name);
    const auto position = first.by_name.find(tensor.name);
    if (known == replicated.end() || position == first.by_name.end() || tensor.tied_copy) continue;
    const checkpoint::TensorView& a = first.tensors[position->second].view;
    const checkpoint::TensorView& b = tensor.view;
    if (!a.storage || !b.storage || !a.storage->file || !b.storage->file || a.numel() == 0 ||
        a.numel() != b.numel() || a.storage->dtype != b.storage->dtype)
      continue;
    const auto sum_a = sums.Of(a), sum_b = sums.Of(b);
    if (sum_a && sum_b ? *sum_a == *sum_b : SameBytes(a, b)) continue;
    return MakeError(
        ErrorCode::kInconsistent,
        fmt::format("{} with other bytes on {} than on {}", tensor.name, rank.Text(), first.Text()),
        fmt::format("equal copies, as in {}: {} is replicated over the tensor ranks by the rules",
                    a.storage->file->path().filename().string(), known->second->canonical),
        b.storage->file->path().string(),
        "A file is damaged or of another step, or a rule calls a split tensor replicated: "
        "`shardproof check` shows what differs; `shardproof inspect` shows the rules in force.");
  }
  return checkpoint::Done{};
}

}  // namespace

Status CheckModelFile(const SourceFile& file) {
  if (checkpoint::Has(file.torch.root, "module")) return checkpoint::Done{};
  return MakeError(ErrorCode::kInconsistent, checkpoint::Render(file.torch.root, 80),
                   "a dictionary with a module, as every model file is", file.name.path.string(),
                   "The file is damaged or of another program: restore it.");
}

Status CheckOneStep(const Inventory& inventory) {
  CK_DO(CompareModelFiles(inventory));
  CK_DO(CompareWriters(inventory));
  return CompareOptimizerFiles(inventory);
}

Status CheckOneOptimizerStep(const Source& source) {
  // Bare optimizers count a parameter's steps from its first gradient on.
  const Wrapper wrapper = source.inventory.wrapper;
  if (wrapper == Wrapper::kFp32 || wrapper == Wrapper::kUniversal) return checkpoint::Done{};
  const ModelRank* first = nullptr;
  double expected = 0;
  for (const ModelRank& rank : source.ranks) {
    for (const LocalGroup& group : rank.groups) {
      if (!group.step || !group.step_in_state) continue;
      if (first == nullptr) {
        first = &rank;
        expected = group.step->value;
      }
      if (group.step->value == expected) continue;
      return MakeError(ErrorCode::kInconsistent,
                       fmt::format("optimizer step {} on {}", group.step->value, rank.Text()),
                       fmt::format("{}, as on {}", expected, first->Text()),
                       source.inventory.folder.step_folder.string(), kAdvice);
    }
  }
  return checkpoint::Done{};
}

Status CheckReplicatedWeights(const Source& source) {
  if (source.inventory.topology.tensor_parallel_size < 2) return checkpoint::Done{};
  std::map<std::string, const LogicalTensor*> replicated;
  for (const LogicalTensor& tensor : source.inventory.tensors) {
    bool averaged = false;  // the framework itself says that these differ
    for (const std::string& pattern : source.universal.averaged) {
      CK_TRY(const bool matches, checkpoint::MatchesPrefix(pattern, tensor.name));
      averaged = averaged || matches;
    }
    if (tensor.parallel == checkpoint::Parallel::kReplicated && !averaged)
      replicated[tensor.name] = &tensor;
  }
  const Sums sums(source.inventory);
  for (const ModelRank& rank : source.ranks) {
    const ModelRank& first = source.ranks[source.RankIndex(static_cast<int32_t>(rank.stage), 0)];
    if (&rank != &first) CK_DO(CompareReplicasOf(first, rank, replicated, sums));
  }
  return checkpoint::Done{};
}

}  // namespace reshape
