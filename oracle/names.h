// What a parameter's name means: its canonical name, how it is split over tensor ranks, what is
// fused in it, whether two pipeline stages share it. The oracle's own reading of parallel rules
// (checkpoint/rules.h is syntax only) and of the pattern lists in universal_checkpoint_info. Order
// of authority: the user's rules, universal_checkpoint_info, built-in rules. Tested by
// names_test.cc. Format: docs/format/rules.md.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/rules.h"
#include "checkpoint/status.h"
#include "checkpoint/value.h"

namespace oracle {

struct ParameterKind {
  std::string canonical;
  std::string rule;           // who named it; empty: nobody
  std::string disagreement;   // a sentence where two sources differ; empty for most
  bool against_file = false;  // one of the two is what the checkpoint itself says
  checkpoint::Parallel parallel = checkpoint::Parallel::kReplicated;
  checkpoint::Fused fused = checkpoint::Fused::kNone;
  std::vector<int64_t> sub_parameter_rows;  // of the full tensor on the split dimension
  bool named = false;
  bool stale_copy = false;  // copies on later pipeline stages are never trained
};

struct NamingInput {
  std::optional<checkpoint::Rules> user_rules;
  std::string builtin;               // name of the built-in set in force; empty: none
  checkpoint::Value universal_info;  // may be null
  checkpoint::Value args;            // Megatron's arguments; may be null
  bool pipelined = false;
  std::set<std::string> names;  // all names, to count the transformer layers where args does not
  std::map<std::string, std::vector<int64_t>> shapes;  // shards' shapes by name, where known
};

class Naming {
 public:
  // Errors: kMalformedRules.
  static checkpoint::Result<Naming> Make(NamingInput input);

  // Errors: kMalformedRules for a pattern that does not compile.
  checkpoint::Result<ParameterKind> KindOf(const std::string& name) const;
  std::string Canonical(const std::string& name) const;
  checkpoint::GroupRule group_rule() const;
  std::string origin() const;
  std::optional<checkpoint::QkvLayout> qkv_layout() const;
  // The layer that tied modules are saved in, by rule; -1: none.
  int64_t embedding_layer() const { return numbering_ ? numbering_->embedding : -1; }
  // Numbers of all layer files that a model of this kind has; empty where no rule says.
  std::vector<int64_t> LayerNumbers() const;
  const std::vector<int64_t>& declared_cuts() const { return cuts_; }

 private:
  std::optional<std::string> CanonicalBy(const std::vector<checkpoint::NameRule>& rules,
                                         const std::string& name) const;
  checkpoint::Status ApplyRules(const checkpoint::Rules& rules, const std::string& origin,
                                ParameterKind& kind) const;
  checkpoint::Result<ParameterKind> UniversalKind(const std::string& name) const;
  checkpoint::Status ApplyUniversal(const std::string& name, ParameterKind& kind) const;
  void CountLayers();
  void FindGatedLayers();

  NamingInput input_;
  std::optional<checkpoint::Rules> builtin_;
  std::vector<checkpoint::NameRule> templates_;
  std::optional<checkpoint::PipelineNumbering> numbering_;
  int64_t layers_ = 0;
  std::vector<int64_t> cuts_;
  std::set<std::string> gated_;  // canonical names of up projections that also hold a gate
  std::map<std::string, std::vector<std::string>> patterns_;  // of universal_checkpoint_info
};

}  // namespace oracle
