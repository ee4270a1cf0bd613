// The oracle while it is being built: every reader of a layout adds tensors, copies, groups and
// findings to one Draft. Internal to oracle/. Tested through oracle_test.cc and
// corpus_oracle_test.cc.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "oracle/holder.h"
#include "oracle/names.h"
#include "oracle/oracle.h"
#include "oracle/source.h"

namespace oracle {

struct TensorEntry {
  TensorInfo info;
  ParameterKind kind;
  int64_t layer = -1;  // pipeline layer number; -1: plain
  std::map<std::string, std::vector<Holder>>
      holders;  // by state; empty list: the files that hold it are missing
};

// A parameter in a group of one model-parallel rank. `start` counts elements of the flat group;
// lists of shaped tensors have none.
struct Member {
  std::string name;
  std::vector<int64_t> shape;
  int64_t start = 0;
  int64_t numel() const;
};

struct Draft {
  Source source;
  OpenOptions options;
  Naming naming;
  Summary summary;
  std::vector<TensorEntry> tensors;
  std::map<std::string, size_t> index_of;
  std::map<int64_t, std::string> tied;  // pipeline layer number -> key under tied_modules
  std::vector<std::vector<int64_t>>
      stage_layers;                        // layer numbers of each stage; empty: not known yet
  std::set<std::string> incomplete;        // trainable parameters whose optimizer files are missing
  std::set<std::string> untrained_copies;  // in a universal folder: frozen, buffers, aliases
  std::map<int64_t, std::vector<int32_t>> tied_stages;  // stages that hold the tied layer
  std::vector<std::string> group_keys;                  // identity of each Summary::groups entry

  explicit Draft(Source opened) : source(std::move(opened)) {}

  TensorEntry& Entry(const std::string& name);  // made where it does not exist
  const TensorEntry* Find(const std::string& name) const;
  // The weight of a parameter on one tensor rank; null where no file holds it.
  const Holder* WeightOf(const std::string& name, int32_t tensor) const;
  void AddHolder(const std::string& name, const std::string& state, Holder holder);
  void Note(std::string kind, std::string text, std::vector<std::string> names, Place place = {});
  void Fault(std::string kind, std::string text, std::vector<std::string> names, Place place = {});
  // Index of the group in Summary::groups; ranks that lack a group do not shift the others.
  // `stored` may be null (elastic).
  int32_t GroupIndex(const checkpoint::Value& stored, int32_t position,
                     std::map<std::string, int32_t>& seen, const Place& place);
  void AddGroupMember(int32_t group, const std::string& name);
};

// Step of an optimizer state: a number or a 0-d tensor. Null where it is neither.
std::optional<double> StepOf(const checkpoint::Value& value);
int64_t Product(const std::vector<int64_t>& shape);

// Readers. Each adds what its layout holds. Errors: those of tensors, kInconsistent,
// kUnprovedOrder.
checkpoint::Status ReadModules(Draft& draft);  // module weights and buffers (modules.cc)
checkpoint::Status ReadPartitions(
    Draft& draft);                              // ZeRO-1/2 and BF16_Optimizer files (partitions.cc)
checkpoint::Status ReadNameless(Draft& draft);  // stage 0: fused, unfused, bare fp32 (nameless.cc)
checkpoint::Status ReadUniversal(Draft& draft);  // DeepSpeed's universal folder (universal.cc)
void ReadCounters(Draft& draft);                 // counters, carried keys (counters.cc)
// Once everything is read: kinds, shapes, stale copies, roles, and the rest of the summary
// (finish.cc). Errors: kUnnamedParameter, kInconsistent, kMalformedRules.
checkpoint::Status Finish(Draft& draft);
checkpoint::Status DecideKinds(Draft& draft);  // what the names mean, for all tensors so far

}  // namespace oracle
