// Law S6, counters agree. Covers: optimizer steps, engine steps, skipped steps, loss scale,
// scheduler and consumed samples are equal over all ranks, and with each other. Does not cover:
// whether the learning rate follows its schedule.

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "certify/format.h"
#include "certify/single_laws.h"
#include "checkpoint/directory.h"
#include "checkpoint/tree.h"

namespace certify {
namespace {

// Entries of model files that are one value for the whole run, whatever the rank.
constexpr const char* kSharedEntries[] = {
    "lr_scheduler",   "iteration",     "tokens",        "global_steps", "skipped_steps",
    "global_samples", "dp_world_size", "mp_world_size", "ds_version",   "checkpoint_version"};

void AddFault(Report& report, std::string kind, std::string text, const oracle::Place& place) {
  Finding finding;
  finding.fault = true;
  finding.kind = std::move(kind);
  finding.text = std::move(text);
  finding.count = 1;
  report.Add(WithPlace(std::move(finding), place));
}

// 1200 for "global_step1200" and "global_step1200_universal"; nothing for other tags, which users
// may choose freely.
std::optional<int64_t> StepOfTag(const std::string& tag) {
  constexpr std::string_view kPrefix = "global_step";
  if (tag.compare(0, kPrefix.size(), kPrefix) != 0) return std::nullopt;
  int64_t step = 0;
  const char* end = tag.data() + tag.size();
  const auto parsed = std::from_chars(tag.data() + kPrefix.size(), end, step);
  if (parsed.ec != std::errc()) return std::nullopt;
  if (parsed.ptr != end && std::string_view(parsed.ptr) != "_universal") return std::nullopt;
  return step;
}

// Optimizer steps that the engine's counters ask for.
struct ExpectedSteps {
  int64_t here = 0;  // with this wrapper from the first step on
  int64_t elsewhere =
      0;  // after a reshape from or to a wrapper that takes one more at construction
};

std::optional<ExpectedSteps> ExpectedOptimizerSteps(const oracle::Summary& summary) {
  if (summary.global_steps < 0) return std::nullopt;
  const int64_t taken = summary.global_steps - std::max<int64_t>(summary.skipped_steps, 0);
  if (summary.dummy_step) return ExpectedSteps{taken + 1, taken};
  return ExpectedSteps{taken, taken + 1};
}

void CheckOverRanks(const oracle::Summary& summary, Report& report) {
  for (const CounterTally& tally : TallyCounters(summary.counters)) {
    report.Compared(tally.places);
    // torch's own optimizers count a parameter's steps from its first gradient on.
    const bool own_pace = tally.name == "optimizer step" && summary.wrapper == "torch";
    if (own_pace) continue;
    for (const oracle::Counter& other : tally.others)
      AddFault(report, "counter-differs",
               Format("{} is {} in {} ({}), {} in most of {} places", tally.name,
                      NumberText(other.value), other.place.file, other.place.rank.ToString(),
                      NumberText(tally.value), tally.places),
               other.place);
  }
  for (const char* key : kSharedEntries) {
    const auto entry = summary.carried.find(key);
    if (entry == summary.carried.end()) continue;
    for (size_t i = 1; i < entry->second.size(); ++i) {
      report.Compared(1);
      const auto& [place, value] = entry->second[i];
      const auto& [first_place, first] = entry->second.front();
      if (!checkpoint::SameStructure(first, value))
        AddFault(report, "entry-differs",
                 Format("{} is {} in {}, {} in {}", key, checkpoint::Render(value, 80), place.file,
                        checkpoint::Render(first, 80), first_place.file),
                 place);
    }
  }
}

void CheckOptimizerSteps(const Subject& subject, Report& report) {
  const oracle::Summary& summary = subject.summary();
  const auto expected = ExpectedOptimizerSteps(summary);
  if (!expected || summary.no_steps_taken) return;
  const std::string reason =
      Format("{} engine steps less {} skipped ones{}", summary.global_steps,
             std::max<int64_t>(summary.skipped_steps, 0),
             summary.dummy_step ? ", and one that this wrapper takes at construction" : "");
  int64_t of_another_wrapper = 0;
  for (size_t i = 0; i < subject.tensors().size(); ++i) {
    const oracle::TensorInfo& info = subject.tensors()[i];
    if (!info.step || !info.alias_of.empty()) continue;
    report.Compared(1);
    if (*info.step == static_cast<double>(expected->here)) continue;
    if (*info.step == static_cast<double>(expected->elsewhere)) {
      ++of_another_wrapper;
      continue;
    }
    Finding finding;
    finding.fault = true;
    finding.kind = "optimizer-step";
    finding.tensor = info.name;
    finding.count = 1;
    finding.text = Format("optimizer step of {} is {}, expected {}: {}", info.name,
                          NumberText(*info.step), expected->here, reason);
    report.Add(std::move(finding), static_cast<int64_t>(i));
  }
  if (of_another_wrapper == 0) return;
  Finding finding;
  finding.kind = "step-of-another-wrapper";
  finding.count = of_another_wrapper;
  finding.text = Format(
      "optimizer step of {} parameters is {}, this wrapper alone would have {} ({}): right after a "
      "reshape from or to a ZeRO-0 wrapper, which carries the step as it is",
      of_another_wrapper, expected->elsewhere, expected->here, reason);
  report.Add(std::move(finding), -1);
}

void CheckTag(const oracle::Summary& summary, Report& report) {
  const auto step = StepOfTag(summary.tag);
  if (!step) return;
  const auto compare = [&](const char* name, int64_t value, bool fault) {
    if (value < 0) return;
    report.Compared(1);
    if (value == *step) return;
    Finding finding;
    finding.fault = fault;
    finding.kind = "tag-and-step";
    finding.count = 1;
    finding.text = Format("the tag {} says step {}, {} is {}", summary.tag, *step, name, value);
    report.Add(std::move(finding));
  };
  compare("global_steps", summary.global_steps, true);
  // Outside Megatron the iteration is the user's own number.
  const bool megatron = summary.format == "megatron-deepspeed";
  compare("iteration", summary.iteration, megatron);
  for (const oracle::Counter& counter : summary.counters)
    if (counter.name == "latest_checkpointed_iteration")
      compare("latest_checkpointed_iteration.txt", static_cast<int64_t>(counter.value), megatron);
}

void CheckSamples(const oracle::Summary& summary, Report& report) {
  const auto args = summary.carried.find("args");
  if (args == summary.carried.end() || args->second.empty()) return;
  const auto number = [&](const char* key) {
    return checkpoint::AsInt(checkpoint::Get(args->second.front().second, key));
  };
  const auto consumed = number("consumed_train_samples");
  const auto batch = number("global_batch_size");
  if (!consumed || !batch || summary.iteration < 0) return;
  for (const auto& [place, value] : args->second) {
    report.Compared(1);
    const auto other = checkpoint::AsInt(checkpoint::Get(value, "consumed_train_samples"));
    if (other != consumed)
      AddFault(report, "consumed-samples",
               Format("args.consumed_train_samples is {} in {}, {} in {}", other.value_or(-1),
                      place.file, *consumed, args->second.front().first.file),
               place);
  }
  if (*batch <= 0 || *consumed % *batch != 0 || *consumed / *batch != summary.iteration) {
    Finding finding;
    finding.kind = "consumed-samples";
    finding.text = Format(
        "args.consumed_train_samples is {}, not iteration {} x global batch {}: a ramp-up of the "
        "batch, or a reset",
        *consumed, summary.iteration, *batch);
    report.Add(std::move(finding));
  }
}

// Entries of optimizer files that are one for the whole run, and those that are one for all data
// ranks of a model rank. Partitions, paddings and slice maps are each rank's own.
constexpr std::string_view kRunEntries[] = {"loss_scaler", "dynamic_loss_scale", "overflow",
                                            "clip_grad",   "zero_stage",         "ds_version"};
constexpr std::string_view kModelRankEntries[] = {"partition_count", "param_alignment_paddings"};

std::vector<std::string> KeysOf(const checkpoint::Value& mapping) {
  std::vector<std::string> keys;
  if (const checkpoint::Items* items = checkpoint::MappingItems(mapping))
    for (const auto& [key, value] : *items) keys.push_back(checkpoint::Render(key, 80));
  return keys;
}

// One optimizer file beside another one.
class OptimizerFilePair {
 public:
  OptimizerFilePair(const checkpoint::TorchFile& first, const checkpoint::TorchFile& other,
                    Report& report)
      : first_(first.root), other_(other.root), report_(report) {
    place_.file = other.file->path().filename().string();
    first_name_ = first.file->path().filename().string();
  }

  void CompareRunEntries() {
    CompareKeys(first_, other_, "");
    const checkpoint::Value a = checkpoint::Get(first_, "optimizer_state_dict");
    const checkpoint::Value b = checkpoint::Get(other_, "optimizer_state_dict");
    CompareKeys(a, b, "optimizer_state_dict");
    for (const std::string_view key : kRunEntries) Compare(a, b, key);
    for (const std::string_view key : {"ds_config", "ds_version"}) Compare(first_, other_, key);
  }
  void CompareModelRankEntries() {
    const checkpoint::Value a = checkpoint::Get(first_, "optimizer_state_dict");
    const checkpoint::Value b = checkpoint::Get(other_, "optimizer_state_dict");
    for (const std::string_view key : kModelRankEntries) Compare(a, b, key);
    Compare(checkpoint::Get(a, "base_optimizer_state"), checkpoint::Get(b, "base_optimizer_state"),
            "param_groups");
  }

 private:
  void CompareKeys(const checkpoint::Value& a, const checkpoint::Value& b, const char* where) {
    report_.Compared(1);
    if (KeysOf(a) != KeysOf(b))
      AddFault(report_, "entry-differs",
               Format("{} has other keys {} than {}", place_.file, where, first_name_), place_);
  }
  void Compare(const checkpoint::Value& a, const checkpoint::Value& b, std::string_view key) {
    const checkpoint::Value x = checkpoint::Get(a, key), y = checkpoint::Get(b, key);
    if (x == nullptr && y == nullptr) return;
    report_.Compared(1);
    const bool same = x != nullptr && y != nullptr && checkpoint::SameStructure(x, y);
    if (!same)
      AddFault(report_, "entry-differs",
               Format("{} is {} in {}, {} in {}", key, checkpoint::Render(y, 200), place_.file,
                      checkpoint::Render(x, 200), first_name_),
               place_);
  }

  checkpoint::Value first_, other_;
  std::string first_name_;
  oracle::Place place_;
  Report& report_;
};

void CheckOptimizerFiles(const Subject& subject, Report& report) {
  const checkpoint::TorchFile* first = nullptr;
  std::map<int64_t, const checkpoint::TorchFile*> first_of;  // by model rank
  for (const checkpoint::TorchFile& file : subject.oracle->torch_files()) {
    const checkpoint::FileName name = checkpoint::ParseFileName(file.file->path());
    if (name.kind != checkpoint::FileKind::kOptimStates) continue;
    if (first == nullptr) first = &file;
    if (&file != first) OptimizerFilePair(*first, file, report).CompareRunEntries();
    const auto known = first_of.emplace(name.mp_number, &file).first;
    if (known->second != &file)
      OptimizerFilePair(*known->second, file, report).CompareModelRankEntries();
  }
}

}  // namespace

LawResult CheckCounters(const Subject& subject) {
  Report report("S6");
  const oracle::Summary& summary = subject.summary();
  CheckOverRanks(summary, report);
  CheckOptimizerSteps(subject, report);
  CheckTag(summary, report);
  CheckSamples(summary, report);
  CheckOptimizerFiles(subject, report);
  for (const oracle::Finding& met : summary.findings)
    if (LawOfKind(met.kind) == "S6") report.Add(FindingOf(met));
  return report.Finish();
}

}  // namespace certify
