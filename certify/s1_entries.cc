// Law S1, part: what every model file of one run holds besides tensors, and what a file says of the
// rank that wrote it.

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "certify/format.h"
#include "certify/single_laws.h"
#include "checkpoint/directory.h"
#include "checkpoint/tree.h"

namespace certify {
namespace {

using checkpoint::Value;

// Entries that the engine writes on every rank, or on none where its version does not know them.
constexpr std::string_view kEngineEntries[] = {"module",
                                               "buffer_names",
                                               "optimizer",
                                               "param_shapes",
                                               "frozen_param_shapes",
                                               "frozen_param_fragments",
                                               "shared_params",
                                               "lr_scheduler",
                                               "data_sampler",
                                               "random_ltd",
                                               "sparse_tensor_module_names",
                                               "csr_tensor_module_names",
                                               "skipped_steps",
                                               "global_steps",
                                               "global_samples",
                                               "dp_world_size",
                                               "mp_world_size",
                                               "checkpoint_parallel_dimensions",
                                               "ds_config",
                                               "ds_version"};
// Entries that Megatron's training loop hands over on every rank. In other runs these names are the
// user's, who may hand them over on one rank alone.
constexpr std::string_view kMegatronEntries[] = {
    "args",      "checkpoint_version", "iteration",        "tokens",
    "rng_state", "checkpoint_info",    "random_rng_state", "universal_checkpoint_info"};
constexpr std::string_view kArgsEntries[] = {"tensor_model_parallel_size",
                                             "pipeline_model_parallel_size"};
// Of args: what makes the model. Every rank was started with the same.
constexpr std::string_view kModelArgs[] = {"num_layers",
                                           "encoder_num_layers",
                                           "hidden_size",
                                           "ffn_hidden_size",
                                           "num_attention_heads",
                                           "num_key_value_heads",
                                           "kv_channels",
                                           "seq_length",
                                           "max_position_embeddings",
                                           "padded_vocab_size",
                                           "make_vocab_size_divisible_by",
                                           "normalization",
                                           "layernorm_epsilon",
                                           "swiglu",
                                           "glu_activation",
                                           "position_embedding_type",
                                           "use_rotary_position_embeddings",
                                           "rotary_percent",
                                           "rope_theta",
                                           "untie_embeddings_and_output_weights",
                                           "tensor_model_parallel_size",
                                           "pipeline_model_parallel_size",
                                           "fp16",
                                           "bf16"};
// Names shown of a file that lacks many.
constexpr size_t kNamesShown = 8;

struct ModelFile {
  int64_t number = 0;  // in mp_rank_XX
  std::string name;
  Value root;
  std::set<std::string> entries;  // "lr_scheduler", "args.rank"
};

std::set<std::string> EntriesOf(const Value& root) {
  std::set<std::string> entries;
  if (const checkpoint::Items* items = checkpoint::MappingItems(root)) {
    for (const auto& [key, value] : *items)
      entries.insert(checkpoint::AsString(key).value_or(checkpoint::Render(key, 80)));
  }
  for (const std::string_view key : kArgsEntries)
    if (checkpoint::Has(checkpoint::Get(root, "args"), key))
      entries.insert("args." + std::string(key));
  return entries;
}

// Of the ranks that the topology has, in order of their numbers.
std::vector<ModelFile> ModelFilesOf(const Subject& subject) {
  const oracle::Summary& summary = subject.summary();
  const int64_t ranks = int64_t{summary.tensor_parallel} * summary.pipeline_parallel;
  std::map<int64_t, ModelFile> by_number;
  for (const checkpoint::TorchFile& file : subject.oracle->torch_files()) {
    const checkpoint::FileName name = checkpoint::ParseFileName(file.file->path());
    if (name.kind != checkpoint::FileKind::kModelStates || name.mp_number >= ranks) continue;
    by_number.emplace(name.mp_number, ModelFile{name.mp_number, summary.tag + "/" + name.name,
                                                file.root, EntriesOf(file.root)});
  }
  std::vector<ModelFile> files;
  for (auto& [number, file] : by_number) files.push_back(std::move(file));
  return files;
}

bool Holds(const auto& list, const std::string& entry) {
  return std::find(std::begin(list), std::end(list), entry) != std::end(list);
}

std::string Shown(std::vector<std::string> names) {
  const size_t all = names.size();
  names.resize(std::min(all, kNamesShown));
  std::string text = JoinText(names, ", ");
  if (all > names.size()) text += Format(" and {} more", all - names.size());
  return text;
}

// Entries that `file` lacks and a sibling has; which sibling has most of them.
void CompareEntries(const ModelFile& file, const std::vector<ModelFile>& files, Report& report) {
  std::vector<std::string> lacking, users;
  const ModelFile* fullest = nullptr;
  bool megatron = false;
  std::set<std::string> all;
  for (const ModelFile& other : files) {
    megatron = megatron || other.entries.count("args") > 0;
    all.insert(other.entries.begin(), other.entries.end());
    if (fullest == nullptr || other.entries.size() > fullest->entries.size()) fullest = &other;
  }
  for (const std::string& entry : all) {
    if (file.entries.count(entry) > 0) continue;
    const bool every_rank = Holds(kEngineEntries, entry) || entry.rfind("args.", 0) == 0 ||
                            (megatron && Holds(kMegatronEntries, entry));
    (every_rank ? lacking : users).push_back(entry);
  }
  if (all.count("module") == 0) lacking.insert(lacking.begin(), "module");
  Finding finding;
  finding.file = file.name;
  if (!lacking.empty()) {
    finding.fault = true;
    finding.kind = "missing-entries";
    finding.count = static_cast<int64_t>(lacking.size());
    finding.text =
        Format("{} has no {}; every rank's model file has it", file.name, Shown(lacking));
    if (fullest != &file) finding.text += Format(", as {} does", fullest->name);
    finding.entries = lacking;
    report.Add(finding);
  }
  if (users.empty()) return;
  finding.fault = false;
  finding.kind = "entries-of-some-files";
  finding.count = static_cast<int64_t>(users.size());
  finding.text = Format("{} has no {}, which {} has: client state of some ranks alone", file.name,
                        Shown(users), fullest->name);
  finding.entries = users;
  report.Add(finding);
}

// A model file's number is its writer's place among the ranks of one model, in the order of their
// global ranks. So args.rank rises with it, whatever the order of the axes. Tools that give every
// file one rank's args say nothing of the order.
void CompareRanks(const std::vector<ModelFile>& files, Report& report) {
  const ModelFile* before = nullptr;
  int64_t last = -1;
  std::set<int64_t> ranks;
  int64_t said = 0;
  for (const ModelFile& file : files) {
    const auto rank = checkpoint::AsInt(checkpoint::GetPath(file.root, {"args", "rank"}));
    if (!rank) continue;
    ++said;
    ranks.insert(*rank);
  }
  if (ranks.size() < 2 || said < static_cast<int64_t>(files.size())) return;
  for (const ModelFile& file : files) {
    const int64_t rank =
        checkpoint::AsInt(checkpoint::GetPath(file.root, {"args", "rank"})).value_or(-1);
    if (before != nullptr && rank <= last) {
      Finding finding;
      finding.fault = true;
      finding.kind = "file-of-another-rank";
      finding.file = file.name;
      finding.count = 1;
      finding.text = Format(
          "{} says that rank {} wrote it, {} says rank {}: model files are numbered in the order "
          "of their writers' ranks, so at least one of them has another's name",
          file.name, rank, before->name, last);
      report.Add(std::move(finding));
    }
    before = &file;
    last = rank;
  }
}

// Args that two files do not agree on; the first file against each other one.
void CompareArgs(const ModelFile& first, const ModelFile& file, Report& report) {
  std::vector<std::string> differing;
  for (const std::string_view name : kModelArgs) {
    const Value expected = checkpoint::GetPath(first.root, {"args", name});
    const Value found = checkpoint::GetPath(file.root, {"args", name});
    if (expected == nullptr || found == nullptr) continue;
    const std::string said = checkpoint::Render(found, 80),
                      other = checkpoint::Render(expected, 80);
    if (said != other) differing.push_back(Format("{} {}, not {}", name, said, other));
  }
  if (differing.empty()) return;
  Finding finding;
  finding.fault = true;
  finding.kind = "args-differ";
  finding.file = file.name;
  finding.count = static_cast<int64_t>(differing.size());
  finding.text = Format("args of {} say {}, as {} does: they are not of one run", file.name,
                        Shown(differing), first.name);
  report.Add(std::move(finding));
}

// Sizes of args against the topology that the files have.
void CompareTopology(const Subject& subject, const ModelFile& file, Report& report) {
  const oracle::Summary& summary = subject.summary();
  const std::pair<const char*, int64_t> sizes[] = {
      {"tensor_model_parallel_size", summary.tensor_parallel},
      {"pipeline_model_parallel_size", summary.pipeline_parallel}};
  for (const auto& [name, expected] : sizes) {
    const auto said = checkpoint::AsInt(checkpoint::GetPath(file.root, {"args", name}));
    if (!said) continue;
    if (*said == expected) continue;
    Finding finding;
    finding.fault = true;
    finding.kind = "args-of-another-topology";
    finding.file = file.name;
    finding.count = 1;
    finding.text =
        Format("args.{} of {} is {}; the files are of {}", name, file.name, *said, expected);
    report.Add(std::move(finding));
  }
}

}  // namespace

void CheckModelEntries(const Subject& subject, Report& report) {
  const std::vector<ModelFile> files = ModelFilesOf(subject);
  for (const ModelFile& file : files) CompareEntries(file, files, report);
  for (const ModelFile& file : files) {
    if (&file != &files.front()) CompareArgs(files.front(), file, report);
    CompareTopology(subject, file, report);
  }
  CompareRanks(files, report);
}

}  // namespace certify
