#include "certify/root_cause.h"

#include <algorithm>
#include <set>
#include <string>

#include "oracle/oracle.h"

namespace certify {
namespace {

const LawResult* Find(const Judgement& judgement, const std::string& law) {
  for (const LawResult& result : judgement.laws)
    if (result.law == law) return &result;
  return nullptr;
}

bool IsBroken(const Judgement& judgement, const std::string& law) {
  const LawResult* result = Find(judgement, law);
  return result != nullptr && result->verdict == Verdict::kBroken;
}

std::set<std::string> FaultyStates(const LawResult& law) {
  std::set<std::string> states;
  for (const Finding& finding : law.findings)
    if (finding.fault) states.insert(finding.state);
  return states;
}

// Replicas that differ only in states that another broken law already explains: masters that are
// stale on one rank differ from the other ranks' too.
bool ReplicasFollow(const Judgement& judgement) {
  const LawResult* replicas = Find(judgement, "S3");
  for (const std::string& state : FaultyStates(*replicas)) {
    const bool explained =
        (state == oracle::kMaster && IsBroken(judgement, "S4")) ||
        ((state == oracle::kExpAvg || state == oracle::kExpAvgSq) && IsBroken(judgement, "S5"));
    if (!explained) return false;
  }
  return true;
}

// Masters that fit no weight make S2 speak as well: moved past the end of their group they lie in
// its padding, and the order of nameless groups cannot be proved by them.
bool PlacesFollow(const Judgement& judgement) {
  for (const Finding& finding : Find(judgement, "S2")->findings)
    if (finding.fault && finding.kind != "padding-not-zero" && finding.kind != "order-unproved")
      return false;
  return IsBroken(judgement, "S4");
}

// Cause before consequence. What a source contradicts no target can carry. A damaged file may break
// anything; a missing one leaves elements uncovered; elements in the wrong place break whatever
// looks at values; the target's own laws come before the comparison with the source, which only
// says that something changed.
std::vector<std::string> CausalOrder(const Judgement& judgement) {
  std::vector<std::string> order = {"R8", "S8", "S1"};
  if (IsBroken(judgement, "S2") && PlacesFollow(judgement)) order.push_back("S4");
  order.insert(order.end(), {"S2", "R1"});
  if (IsBroken(judgement, "S3") && ReplicasFollow(judgement)) {
    order.insert(order.end(), {"S4", "S5", "S3"});
  } else {
    order.insert(order.end(), {"S3", "S4", "S5"});
  }
  order.insert(order.end(), {"S6", "S7", "R2", "R3", "R4", "R5", "R7", "R6", "V1"});
  return order;
}

}  // namespace

void Conclude(Judgement& judgement) {
  bool broken = false, undecided = false, held = false;
  for (const LawResult& law : judgement.laws) {
    broken = broken || law.verdict == Verdict::kBroken;
    undecided = undecided || law.verdict == Verdict::kUndecided;
    held = held || law.verdict == Verdict::kHeld;
  }
  judgement.verdict = broken || undecided || !held ? Verdict::kUndecided : Verdict::kHeld;
  judgement.root.clear();
  judgement.consequences.clear();
  if (!broken) return;
  judgement.verdict = Verdict::kBroken;
  for (const std::string& law : CausalOrder(judgement)) {
    const bool named = law == judgement.root ||
                       std::find(judgement.consequences.begin(), judgement.consequences.end(),
                                 law) != judgement.consequences.end();
    if (named || !IsBroken(judgement, law)) continue;
    if (judgement.root.empty()) {
      judgement.root = law;
    } else {
      judgement.consequences.push_back(law);
    }
  }
}

}  // namespace certify
