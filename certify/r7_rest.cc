// Law R7, everything else is listed. Covers: an exact list of what was carried, re-derived (by
// which rule), made up or dropped; a change that no rule explains breaks the law. Does not cover:
// whether the framework reads an entry.

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "certify/format.h"
#include "certify/pair_laws.h"
#include "certify/tree_bits.h"
#include "checkpoint/tree.h"

namespace certify {
namespace {

using checkpoint::Value;
using Holders = std::vector<std::pair<oracle::Place, Value>>;

struct KeyRule {
  const char* key;
  const char* rule;
};

// Entries of model files that follow from the target's topology, stage, type or layout.
constexpr KeyRule kEntryRules[] = {
    {"module", "the target's layout"},
    {"buffer_names", "the target's layout"},
    {"optimizer", "the target's layout"},
    {"param_shapes", "the target's layout"},
    {"frozen_param_shapes", "the target's layout"},
    {"frozen_param_fragments", "the target's layout"},
    {"shared_params", "the target's layout"},
    {"sparse_tensor_module_names", "the target's layout"},
    {"dp_world_size", "the target's topology"},
    {"mp_world_size", "the target's topology"},
    {"checkpoint_parallel_dimensions", "the target's topology"},
    {"ds_config", "the target's topology, stage and type"},
    {"universal_checkpoint_info", "the target's topology and layout"},
    {"checkpoint_info", "the target's vocabulary padding"},
};

// Keys of args, likewise.
constexpr KeyRule kArgsRules[] = {
    {"tensor_model_parallel_size", "the target's topology"},
    {"pipeline_model_parallel_size", "the target's topology"},
    {"transformer_pipeline_model_parallel_size", "the target's topology"},
    {"data_parallel_size", "the target's topology"},
    {"world_size", "the target's topology"},
    {"model_parallel_size", "the target's topology"},
    {"rank", "the target's topology"},
    {"local_rank", "the target's topology"},
    {"global_rank", "the target's topology"},
    {"padded_vocab_size", "the target's vocabulary padding"},
    {"zero_stage", "the target's stage"},
    {"ds_pipeline_enabled", "the target's layout"},
    {"no_pipeline_parallel", "the target's layout"},
    {"fp16", "the target's type"},
    {"bf16", "the target's type"},
    {"params_dtype", "the target's type"},
    {"accumulate_allreduce_grads_in_fp32", "the target's type"},
    {"loss_scale", "the target's type"},
    {"micro_batch_size", "batch sizes at another data parallel size"},
    {"global_batch_size", "batch sizes at another data parallel size"},
    {"deepspeed_config", "the target's topology, stage and type"},
    {"deepspeed_config_dict", "the target's topology, stage and type"},
    {"deepspeed_configuration", "the target's topology, stage and type"},
};

// Of a DeepSpeed configuration, what follows from topology, stage and type.
constexpr const char* kConfigurationEntries[] = {"zero_optimization",
                                                 "zero_allow_untested_optimizer",
                                                 "fp16",
                                                 "bf16",
                                                 "bfloat16",
                                                 "train_batch_size",
                                                 "data_types",
                                                 "checkpoint",
                                                 "train_micro_batch_size_per_gpu",
                                                 "gradient_accumulation_steps",
                                                 "communication_data_type"};

constexpr const char* kRandomStates[] = {"rng_state",      "random_rng_state",
                                         "np_rng_state",   "torch_rng_state",
                                         "cuda_rng_state", "rng_tracker_states"};

// Compared one by one by R5 and S6.
constexpr const char* kJudgedElsewhere[] = {"lr_scheduler", "global_steps", "skipped_steps",
                                            "iteration"};

template <size_t kCount>
const char* RuleOf(const KeyRule (&rules)[kCount], const std::string& key) {
  for (const KeyRule& rule : rules)
    if (key == rule.key) return rule.rule;
  return nullptr;
}

template <size_t kCount>
bool IsOneOf(const char* const (&names)[kCount], const std::string& key) {
  return std::any_of(std::begin(names), std::end(names),
                     [&](const char* name) { return key == name; });
}

// Entries that a text lists; more are in the finding's own list.
constexpr size_t kListedMax = 12;

// Levels of mappings that are taken apart to say what changed in them.
constexpr int kChangeDepthMax = 4;

// "ds_config.zero_optimization.stage: 0 -> 1", one text a changed entry.
void AppendChanges(const std::string& path, const Value& a, const Value& b, int depth,
                   std::vector<std::string>& changes) {
  const checkpoint::Items* source_items = checkpoint::MappingItems(a);
  const checkpoint::Items* target_items = checkpoint::MappingItems(b);
  if (source_items == nullptr || target_items == nullptr || depth == 0) {
    changes.push_back(
        Format("{}: {} -> {}", path, checkpoint::Render(a, 120), checkpoint::Render(b, 120)));
    return;
  }
  const auto key_of = [](const Value& key) {
    return checkpoint::AsString(key).value_or(checkpoint::Render(key, 80));
  };
  const size_t before = changes.size();
  for (const auto& [key, value] : *source_items) {
    const std::string name = key_of(key);
    const Value other = checkpoint::Get(b, name);
    if (SameTree(value, other)) continue;
    if (other == nullptr) {
      changes.push_back(
          Format("{}.{} ({}) is dropped", path, name, checkpoint::Render(value, 120)));
    } else {
      AppendChanges(path + "." + name, value, other, depth - 1, changes);
    }
  }
  for (const auto& [key, value] : *target_items)
    if (!checkpoint::Has(a, key_of(key)))
      changes.push_back(
          Format("{}.{} ({}) is new", path, key_of(key), checkpoint::Render(value, 120)));
  // Keys that are no texts, or another order of the same entries.
  if (changes.size() == before) changes.push_back(path + ": other entries, or in another order");
}

// A change inside a DeepSpeed configuration that its rule covers; any change of another entry.
bool IsExplained(const std::string& change) {
  for (const std::string_view configuration : {"ds_config.", "args.deepspeed_config_dict."}) {
    if (change.compare(0, configuration.size(), configuration) != 0) continue;
    const std::string rest = change.substr(configuration.size());
    return IsOneOf(kConfigurationEntries, rest.substr(0, rest.find_first_of(".: ")));
  }
  return true;
}

class Rest {
 public:
  Rest(const Subject& source, const Subject& target)
      : source_(source), target_(target), report_("R7") {
    report_.KeepPerKind(0);  // the list is exact
  }

  void ListEntries() {
    std::set<std::string> keys;
    for (const Subject* side : {&source_, &target_})
      for (const auto& [key, holders] : side->summary().carried) keys.insert(key);
    for (const std::string& key : keys) {
      if (IsOneOf(kJudgedElsewhere, key)) continue;
      const Holders* a = HoldersOf(source_, key);
      const Holders* b = HoldersOf(target_, key);
      report_.Compared(1);
      if (IsOneOf(kRandomStates, key)) {
        ListRandomState(key, a, b);
      } else if (a == nullptr || b == nullptr) {
        const char* rule = RuleOf(kEntryRules, key);
        Add(a == nullptr ? "made-up" : "dropped", key,
            Format("{} is in the {} only{}{}", key, a == nullptr ? "target" : "source",
                   rule == nullptr ? "" : ": follows from ", rule == nullptr ? "" : rule));
      } else if (key == "args" && IsMapping(*a) && IsMapping(*b)) {
        CompareArgs(*a, *b);
      } else if (CompareEntry(key, *a, *b, RuleOf(kEntryRules, key))) {
        carried_entries_.push_back(key);
      }
    }
    ListCarried("model files", carried_entries_);
    ListCarried("args", carried_args_);
  }

  void ListStaleCopies();
  void ListBatchSizes();

  void Append(const std::vector<Finding>& findings) {
    report_.Compared(static_cast<int64_t>(findings.size()));
    for (const Finding& finding : findings) report_.Add(finding);
  }

  void NothingElse() { report_.NotApplicable("the files hold nothing else"); }
  LawResult Finish() { return report_.Finish(); }

 private:
  static const Holders* HoldersOf(const Subject& subject, const std::string& key) {
    const auto found = subject.summary().carried.find(key);
    return found == subject.summary().carried.end() || found->second.empty() ? nullptr
                                                                             : &found->second;
  }

  void Add(std::string kind, const std::string& key, std::string text, bool fault = false) {
    Finding finding;
    finding.fault = fault;
    finding.kind = std::move(kind);
    finding.state = key;
    finding.text = std::move(text);
    finding.count = 1;
    report_.Add(std::move(finding));
  }

  void ListCarried(const char* where, const std::vector<std::string>& keys) {
    if (keys.empty()) return;
    Finding finding;
    finding.kind = "carried";
    finding.count = static_cast<int64_t>(keys.size());
    finding.text = Format("{}: {} entries carried unchanged", where, keys.size());
    if (keys.size() <= kListedMax) {
      finding.text += ": " + JoinText(keys, ", ");
    } else {
      finding.entries = keys;
    }
    report_.Add(std::move(finding), -1);
  }

  static bool IsMapping(const Holders& holders) {
    return std::all_of(holders.begin(), holders.end(), [](const auto& holder) {
      return checkpoint::MappingItems(holder.second) != nullptr;
    });
  }

  // Every value of the target is some value of the source: ranks may differ among themselves, and a
  // target has other ranks. Lists what is not, each change once; false if there was one.
  bool CompareEntry(const std::string& key, const Holders& a, const Holders& b, const char* rule) {
    std::set<std::string> listed;
    for (const auto& [place, value] : b) {
      const auto same = [&value = value](const auto& holder) {
        return SameTree(holder.second, value);
      };
      if (std::any_of(a.begin(), a.end(), same)) continue;
      std::vector<std::string> changes;
      AppendChanges(key, a.front().second, value, kChangeDepthMax, changes);
      const std::string change = JoinText(changes, "; ");
      if (!listed.insert(change).second) continue;
      Finding finding;
      finding.fault = rule == nullptr || !std::all_of(changes.begin(), changes.end(), IsExplained);
      finding.kind = finding.fault ? "changed" : "re-derived";
      finding.state = key;
      finding.count = 1;
      finding.text = finding.fault ? change + ": no rule explains the change"
                                   : Format("{}, from {}", change, rule);
      report_.Add(finding.fault ? WithPlace(std::move(finding), place) : std::move(finding));
    }
    return listed.empty();
  }

  void CompareArgs(const Holders& a, const Holders& b) {
    const auto keys_of = [](const Holders& holders) {
      std::vector<std::string> keys;
      std::set<std::string> known;
      for (const auto& [place, args] : holders)
        for (const auto& [key, value] : *checkpoint::MappingItems(args))
          if (const auto name = checkpoint::AsString(key); name && known.insert(*name).second)
            keys.push_back(*name);
      return keys;
    };
    // The entry on every rank; null where a rank lacks it.
    const auto values_of = [](const Holders& holders, const std::string& key) {
      Holders values;
      for (const auto& [place, args] : holders)
        values.emplace_back(place, checkpoint::Get(args, key));
      return values;
    };
    const auto has = [](const auto& holder) { return holder.second != nullptr; };
    for (const std::string& key : keys_of(a)) {
      const Holders before = values_of(a, key), after = values_of(b, key);
      report_.Compared(1);
      if (std::none_of(after.begin(), after.end(), has)) {
        Add("dropped", "args." + key,
            Format(
                "args.{} ({}) is not in the target", key,
                checkpoint::Render(std::find_if(before.begin(), before.end(), has)->second, 80)));
      } else if (CompareEntry("args." + key, before, after, RuleOf(kArgsRules, key))) {
        carried_args_.push_back(key);
      }
    }
    const auto source_keys = keys_of(a);
    for (const std::string& key : keys_of(b)) {
      if (std::find(source_keys.begin(), source_keys.end(), key) != source_keys.end()) continue;
      report_.Compared(1);
      Add("made-up", "args." + key, Format("args.{} is in the target only", key));
    }
  }

  void ListRandomState(const std::string& key, const Holders* a, const Holders* b);

  const Subject& source_;
  const Subject& target_;
  Report report_;
  std::vector<std::string> carried_entries_, carried_args_;
};

// Streams are per rank: after a change of topology there is no rank that a stream belongs to.
void Rest::ListRandomState(const std::string& key, const Holders* a, const Holders* b) {
  if (a == nullptr || b == nullptr) {
    Add(a == nullptr ? "made-up" : "dropped", key,
        Format("{}: random number streams are in the {} only", key,
               a == nullptr ? "target" : "source"));
    return;
  }
  int64_t carried = 0, known = 0;
  for (const auto& [place, stream] : *b) {
    for (size_t i = 0; i < a->size(); ++i) {
      if (!SameTree((*a)[i].second, stream)) continue;
      ++known;
      const oracle::Rank &x = (*a)[i].first.rank, &y = place.rank;
      const bool same_rank = std::tie(x.tensor, x.stage) == std::tie(y.tensor, y.stage);
      if (same_rank) ++carried;
      if (same_rank || i + 1 == a->size()) break;
    }
  }
  const auto total = static_cast<int64_t>(b->size());
  if (carried == total && a->size() == b->size()) {
    carried_entries_.push_back(key);
    return;
  }
  Add("re-derived", key,
      Format("{}: random number streams of {} model files became {}: {} as on the same rank, "
             "{} copies of another source rank's, {} new",
             key, a->size(), total, carried, std::max<int64_t>(0, std::min(known, total) - carried),
             std::max<int64_t>(0, total - known)));
}

void Rest::ListStaleCopies() {
  const auto target_names = ByCanonicalName(target_);
  for (const auto& [name, index] : ByCanonicalName(source_)) {
    const auto found = target_names.find(name);
    if (found == target_names.end()) continue;
    const auto a = source_.oracle->StaleCopy(index);
    const auto b = target_.oracle->StaleCopy(found->second);
    if (!a.ok() || !b.ok() || (a.value().empty() && b.value().empty())) continue;
    report_.Compared(1);
    if (b.value().empty()) {
      Add("dropped", name,
          Format("{}: the stale tied copy of the last stage is dropped: the target keeps the "
                 "tensor once",
                 name));
      continue;
    }
    if (a.value().empty()) {
      Add("made-up", name,
          Format("{}: the copy on the target's last stage is made up: the source keeps the "
                 "tensor once",
                 name));
      continue;
    }
    std::vector<std::string> differing;
    for (const auto& [state, value] : b.value()) {
      const auto other = a.value().find(state);
      const bool comparable = other != a.value().end() &&
                              other->second.scalar_type() == value.scalar_type() &&
                              other->second.numel() == value.numel();
      if (comparable && !CompareBits(other->second.contiguous(), value.contiguous()).equal())
        differing.push_back(state);
    }
    if (differing.empty()) {
      Add("carried", name,
          Format("{}: the stale tied copy of the last stage is carried as it was", name));
    } else {
      Add("re-derived", name,
          Format("{}: the stale tied copy of the last stage was replaced ({})", name,
                 JoinText(differing, ", ")));
    }
  }
}

// global = micro x accumulation x DP.
void Rest::ListBatchSizes() {
  if (source_.summary().data_parallel == target_.summary().data_parallel) return;
  const Holders* config = HoldersOf(target_, "ds_config");
  const Holders* args = HoldersOf(target_, "args");
  const auto number = [](const Holders* holders, const char* key) -> int64_t {
    return holders == nullptr
               ? 0
               : checkpoint::AsInt(checkpoint::Get(holders->front().second, key)).value_or(0);
  };
  const int64_t micro =
      std::max(number(config, "train_micro_batch_size_per_gpu"), number(args, "micro_batch_size"));
  const int64_t global =
      std::max(number(config, "train_batch_size"), number(args, "global_batch_size"));
  const int64_t data = target_.summary().data_parallel;
  report_.Compared(1);
  if (micro <= 0 || global <= 0) {
    Add("re-derived", "batch",
        Format("data parallel size {} -> {}: the global batch (micro x accumulation x DP) "
               "changes with it unless "
               "the configuration names it",
               source_.summary().data_parallel, data));
  } else if (global % (micro * data) == 0) {
    Add("re-derived", "batch",
        Format("batch: global {} = micro {} x accumulation {} x DP {}", global, micro,
               global / (micro * data), data));
  } else {
    Add("re-derived", "batch",
        Format("batch: global {} is no multiple of micro {} x DP {}: choose other batch sizes "
               "before the resume",
               global, micro, data));
  }
}

}  // namespace

LawResult ListTheRest(const Subject& source, const Subject& target,
                      const std::vector<Finding>& from_states) {
  Rest rest(source, target);
  rest.ListEntries();
  rest.ListStaleCopies();
  rest.ListBatchSizes();
  rest.Append(from_states);
  if (source.summary().carried.empty() && target.summary().carried.empty()) rest.NothingElse();
  return rest.Finish();
}

}  // namespace certify
