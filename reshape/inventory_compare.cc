#include "reshape/inventory_compare.h"

#include <algorithm>
#include <cstring>

#include "checkpoint/tensor.h"
#include "checkpoint/tree.h"
#include "reshape/rounding.h"

namespace reshape {
namespace {

using checkpoint::DType;

int64_t Product(const std::vector<int64_t>& shape) {
  int64_t numel = 1;
  for (const int64_t extent : shape) numel *= extent;
  return numel;
}

std::string ToFloat(const std::string& bytes, DType dtype) {
  if (dtype == DType::kFloat32) return bytes;
  std::string wide;
  for (size_t i = 0; i + 1 < bytes.size(); i += 2) {
    uint16_t bits;
    std::memcpy(&bits, bytes.data() + i, 2);
    const float value = dtype == DType::kFloat16 ? WidenFloat16(bits) : WidenBFloat16(bits);
    wide.append(reinterpret_cast<const char*>(&value), 4);
  }
  return wide;
}

std::string Rounded(const std::string& floats, DType dtype) {
  if (dtype == DType::kFloat32) return floats;
  std::string narrow;
  for (size_t i = 0; i + 3 < floats.size(); i += 4) {
    float value;
    std::memcpy(&value, floats.data() + i, 4);
    const uint16_t bits = dtype == DType::kFloat16 ? RoundToFloat16(value) : RoundToBFloat16(value);
    narrow.append(reinterpret_cast<const char*>(&bits), 2);
  }
  return narrow;
}

std::string Scaled(std::string floats, float factor) {
  for (size_t i = 0; factor != 1 && i + 3 < floats.size(); i += 4) {
    float value;
    std::memcpy(&value, floats.data() + i, 4);
    value *= factor;
    std::memcpy(floats.data() + i, &value, 4);
  }
  return floats;
}

class Comparer {
 public:
  Comparer(const Inventory& source, const Inventory& target, const CompareOptions& options)
      : source_(source), target_(target), options_(options) {}

  Comparison Compare() {
    for (const LogicalTensor& from : source_.tensors) {
      if (!options_.frozen && from.group < 0) continue;
      const auto to = std::find_if(
          target_.tensors.begin(), target_.tensors.end(),
          [&](const LogicalTensor& tensor) { return tensor.canonical == from.canonical; });
      if (to == target_.tensors.end()) {
        Differ(from, "is not in the target");
      } else {
        ComparePair(from, *to);
      }
    }
    return std::move(out_);
  }

 private:
  void Differ(const LogicalTensor& tensor, const std::string& what) {
    out_.differences.push_back(tensor.canonical + ": " + what);
  }

  void ComparePair(const LogicalTensor& from, const LogicalTensor& to) {
    if (from.alias_of != to.alias_of)
      Differ(from, "alias of " + to.alias_of + ", was of " + from.alias_of);
    if (from.role != to.role) Differ(from, "another role");
    std::vector<int64_t> a = from.shape, b = to.shape;
    if (from.parallel == checkpoint::Parallel::kVocabulary) a[0] = b[0] = 0;
    if (a != b) Differ(from, "another shape");
    if (!from.alias_of.empty()) return;
    if (from.step.has_value() != to.step.has_value()) {
      Differ(from, "step lost or made");
    } else if (from.step &&
               (from.step->value != to.step->value || from.step->tensor != to.step->tensor)) {
      Differ(from, "another step");
    }
    CompareGroups(from, to);
    const bool bits = from.role != Role::kFrozen || options_.frozen_bits;
    if (options_.weights && bits) CompareWeight(from, to);
    CompareMasters(from, to);
    for (const auto& [name, pieces] : from.states) {
      if (name == "weight" || name == "fp32_master") continue;
      const auto found = to.states.find(name);
      if (found == to.states.end()) {
        Differ(from, name + " is lost");
        continue;
      }
      const float factor = name == "exp_avg"      ? options_.moment_factor
                           : name == "exp_avg_sq" ? options_.moment_factor * options_.moment_factor
                                                  : 1;
      CompareBytes(from, name, Scaled(WholeState(from, pieces), factor),
                   WholeState(to, found->second));
    }
  }

  void CompareGroups(const LogicalTensor& from, const LogicalTensor& to) {
    if ((from.group < 0) != (to.group < 0)) return Differ(from, "in a group on one side only");
    if (from.group < 0) return;
    const auto text = [](const Inventory& inventory, int32_t group) {
      const checkpoint::Value& stored =
          inventory.groups[static_cast<size_t>(group)].hyper_parameters;
      std::string out;
      const checkpoint::Items* items = checkpoint::MappingItems(stored);
      if (items == nullptr) return out;
      for (const auto& [key, value] : *items) {
        if (checkpoint::AsString(key) != "params")
          out += checkpoint::Render(key, 80) + checkpoint::Render(value, 80);
      }
      return out;
    };
    const std::string before = text(source_, from.group), after = text(target_, to.group);
    if (!before.empty() && !after.empty() && before != after)
      Differ(from, "group " + after + ", was " + before);
  }

  // The fp32 form: the master, or the weight of an fp32 run.
  static const StatePieces* MasterOf(const LogicalTensor& tensor) {
    const auto master = tensor.states.find("fp32_master");
    if (master != tensor.states.end()) return &master->second;
    const auto weight = tensor.states.find("weight");
    return weight != tensor.states.end() && weight->second.dtype == DType::kFloat32
               ? &weight->second
               : nullptr;
  }

  void CompareWeight(const LogicalTensor& from, const LogicalTensor& to) {
    const auto a = from.states.find("weight"), b = to.states.find("weight");
    if (b == to.states.end()) {
      if (target_.wrapper != Wrapper::kUniversal) Differ(from, "no weight in the target");
      return;
    }
    const StatePieces* exact = MasterOf(from);
    if (exact == nullptr) exact = &a->second;
    const DType dtype = b->second.dtype;
    const bool same = a != from.states.end() && a->second.dtype == dtype;
    const std::string expected =
        same ? WholeState(from, a->second)
             : Rounded(ToFloat(WholeState(from, *exact), exact->dtype), dtype);
    CompareBytes(from, "weight", expected, WholeState(to, b->second));
  }

  void CompareMasters(const LogicalTensor& from, const LogicalTensor& to) {
    if (from.group < 0) return;
    const StatePieces* a = MasterOf(from);
    const StatePieces* b = MasterOf(to);
    if (a == nullptr || b == nullptr) return Differ(from, "no master");
    CompareBytes(from, "fp32_master", WholeState(from, *a), WholeState(to, *b));
  }

  // Rows beyond the shorter side must be zero where the target has them.
  void CompareBytes(const LogicalTensor& tensor, const std::string& state, const std::string& from,
                    const std::string& to) {
    size_t common = std::min(from.size(), to.size());
    if (tensor.parallel == checkpoint::Parallel::kVocabulary &&
        options_.vocabulary_rows_between > 0) {
      const size_t row_bytes = from.size() / static_cast<size_t>(tensor.shape[0]);
      common = std::min(common, row_bytes * static_cast<size_t>(options_.vocabulary_rows_between));
    }
    if (from.size() != to.size() && tensor.parallel != checkpoint::Parallel::kVocabulary)
      return Differ(tensor, state + " of another size");
    if (common == 0 && Product(tensor.shape) > 0)
      return Differ(tensor, state + " is not covered exactly once");
    if (std::memcmp(from.data(), to.data(), common) != 0)
      Differ(tensor, state + " has other bytes");
    for (size_t i = common; i < to.size(); ++i) {
      if (to[i] != 0) return Differ(tensor, state + " has made-up rows that are not zero");
    }
    out_.compared += static_cast<int64_t>(common);
  }

  const Inventory& source_;
  const Inventory& target_;
  const CompareOptions options_;
  Comparison out_;
};

}  // namespace

std::string WholeState(const LogicalTensor& tensor, const StatePieces& state) {
  const auto width = static_cast<size_t>(checkpoint::ElementBytes(state.dtype));
  const auto numel = static_cast<size_t>(Product(tensor.shape));
  std::string bytes(numel * width, '\0');
  std::vector<char> held(numel, 0);
  for (const Piece& piece : state.pieces) {
    const auto source = checkpoint::StorageBytes(*piece.storage);
    for (int64_t i = piece.begin; i < piece.end; ++i) {
      int64_t rest = i, full = 0, full_stride = 1,
              stored = piece.strides.empty() ? piece.offset + (i - piece.begin) : piece.offset;
      for (size_t d = tensor.shape.size(); d-- > 0;) {
        const int64_t at = rest % piece.box.extent[d];
        rest /= piece.box.extent[d];
        full += (piece.box.start[d] + at) * full_stride;
        full_stride *= tensor.shape[d];
        if (!piece.strides.empty()) stored += at * piece.strides[d];
      }
      if (full < 0 || full >= static_cast<int64_t>(numel) || held[static_cast<size_t>(full)]++ != 0)
        return "";
      std::memcpy(bytes.data() + static_cast<size_t>(full) * width,
                  source.data() + static_cast<size_t>(stored) * width, width);
    }
  }
  return std::find(held.begin(), held.end(), 0) == held.end() ? bytes : "";
}

Comparison CompareInventories(const Inventory& source, const Inventory& target,
                              const CompareOptions& options) {
  return Comparer(source, target, options).Compare();
}

}  // namespace reshape
