// Looking into and copying object trees: dictionary access, numbers, copies with some entries
// replaced. dict, OrderedDict and the state of an instance (argparse.Namespace, loss scaler) are
// all "mappings" here. Not for meaning: what a key says is decided by the rooms above. Tested by
// tree_test.cc.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/status.h"
#include "checkpoint/value.h"

namespace checkpoint {

using Items = std::vector<std::pair<Value, Value>>;

bool IsNone(const Value& value);  // None or null
// Items of a dict, an OrderedDict, or an instance's state dict (Namespace, LossScaler); null for
// anything else.
const Items* MappingItems(const Value& value);
// Items of a list or tuple (or torch.Size: its numbers); null for anything else.
const std::vector<Value>* SequenceItems(const Value& value);
// Entry of a mapping by string key (or integer key); null Value where absent or not a mapping.
Value Get(const Value& mapping, std::string_view key);
Value GetIndex(const Value& mapping, int64_t key);
// Path of string keys: GetPath(root, {"optimizer", "param_groups"}).
Value GetPath(const Value& root, std::initializer_list<std::string_view> keys);
bool Has(const Value& mapping, std::string_view key);

// Nullopt for every other kind. AsInt: int or bool; also an enum made by REDUCE (ZeroStageEnum).
std::optional<int64_t> AsInt(const Value& value);
// int, bool or float.
std::optional<double> AsNumber(const Value& value);
std::optional<bool> AsBool(const Value& value);
std::optional<std::string> AsString(const Value& value);
// List, tuple or torch.Size of ints.
std::optional<std::vector<int64_t>> AsIntList(const Value& value);
// "argparse.Namespace" of an instance; empty for anything else.
std::string ClassName(const Value& value);

// Copies of a mapping (same class, other entries untouched and shared) with an entry set (in place,
// or appended), or removed. REQUIRES: MappingItems(mapping).
Value WithEntry(const Value& mapping, std::string_view key, Value entry);
Value WithoutEntry(const Value& mapping, std::string_view key);

// Structural equality: same kinds, same scalars (NaN equals NaN, int is not float), same order of
// items; storages compare by dtype and numel only (bytes are the caller's). Identity and memo
// patterns do not matter. Linear in the nodes of both.
bool SameStructure(const Value& a, const Value& b);
// One-line rendering for messages and reports, at most `chars_max` characters: "dict(3)", "0.01",
// "'fused'".
std::string Render(const Value& value, size_t chars_max);

}  // namespace checkpoint
