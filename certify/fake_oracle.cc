#include "certify/fake_oracle.h"

#include <ATen/ops/arange.h>

#include <algorithm>
#include <cstdlib>

namespace certify {
namespace {

oracle::Place PlaceOf(int32_t data) {
  return {data == 0 ? "global_step4/zero_pp_rank_0_mp_rank_00_optim_states.pt"
                    : "global_step4/zero_pp_rank_1_mp_rank_00_optim_states.pt",
          "data/0",
          {0, 0, data}};
}

at::ScalarType TypeOf(checkpoint::DType dtype) {
  if (dtype == checkpoint::DType::kBFloat16) return at::kBFloat16;
  return dtype == checkpoint::DType::kFloat16 ? at::kHalf : at::kFloat;
}

}  // namespace

checkpoint::Result<oracle::Assembled> FakeOracle::Assemble(size_t index,
                                                           const std::string& state) const {
  const auto error = errors.find({index, state});
  if (error != errors.end()) return error->second;
  return states.at({index, state});
}

checkpoint::Result<std::vector<oracle::HolderPart>> FakeOracle::PartOfEachHolder(
    size_t index, const std::string& state) const {
  const auto found = parts.find({index, state});
  return found == parts.end() ? std::vector<oracle::HolderPart>() : found->second;
}

checkpoint::Result<std::vector<std::vector<oracle::ShardCopy>>> FakeOracle::CopiesOf(
    size_t index, const std::string& state) const {
  const auto found = copies.find({index, state});
  if (found != copies.end()) return found->second;
  oracle::ShardCopy whole;
  whole.pieces.push_back({PlaceOf(0), NumelOfShape(infos[index].shape), true});
  return std::vector<std::vector<oracle::ShardCopy>>{{whole}};
}

checkpoint::Result<std::map<std::string, at::Tensor>> FakeOracle::StaleCopy(size_t index) const {
  const auto found = stale.find(index);
  return found == stale.end() ? std::map<std::string, at::Tensor>() : found->second;
}

size_t FakeOracle::Index(const std::string& name) const {
  const auto found = std::find_if(infos.begin(), infos.end(), [&](const oracle::TensorInfo& info) {
    return info.name == name;
  });
  if (found == infos.end()) std::abort();
  return static_cast<size_t>(found - infos.begin());
}

at::Tensor& FakeOracle::Value(const std::string& name, const std::string& state) {
  return State(name, state).value;
}

oracle::Assembled& FakeOracle::State(const std::string& name, const std::string& state) {
  return states.at({Index(name), state});
}

void FakeOracle::Add(const std::string& name, std::vector<int64_t> shape, oracle::Role role) {
  const size_t index = infos.size();
  oracle::TensorInfo info;
  info.name = name;
  info.canonical = name;
  info.parallel = "replicated";
  info.shape = shape;
  info.role = role;
  const int64_t numel = NumelOfShape(shape);
  // Every element of every tensor is another number; no weight is a master exactly, so that
  // rounding is seen.
  const double first = 0.1 * static_cast<double>(index + 1);
  const at::Tensor master = at::arange(numel, at::kFloat).mul(0.003).add(first).view(shape);
  const auto put = [&](const char* state, const at::Tensor& value, checkpoint::DType dtype) {
    info.states[state] = dtype;
    oracle::Assembled assembled;
    assembled.value = value.contiguous();
    assembled.covered = numel;
    assembled.replicas_compared = state == std::string(oracle::kWeight) ? numel : 0;
    assembled.holders = {PlaceOf(0), PlaceOf(1)};
    states[{index, state}] = assembled;
  };
  if (role == oracle::Role::kBuffer) {
    put(oracle::kWeight, master.mul(1000).to(at::kLong), checkpoint::DType::kInt64);
  } else {
    put(oracle::kWeight, master.to(at::kHalf), checkpoint::DType::kFloat16);
  }
  if (role == oracle::Role::kTrainable) {
    put(oracle::kMaster, master, checkpoint::DType::kFloat32);
    put(oracle::kExpAvg, master.mul(-0.01), checkpoint::DType::kFloat32);
    put(oracle::kExpAvgSq, master.mul(master).mul(0.001), checkpoint::DType::kFloat32);
    info.step = 4;
    info.group = shape.size() > 1 ? 0 : 1;
    facts.groups[static_cast<size_t>(info.group)].members.push_back(name);
  }
  infos.push_back(std::move(info));
  ShareOut();
}

void FakeOracle::ShareOut() {
  parts.clear();
  for (const auto& [key, assembled] : states) {
    if (key.second == oracle::kWeight) continue;
    const at::Tensor flat = assembled.value.flatten();
    const int64_t half = flat.numel() / 2;
    parts[key] = {{PlaceOf(0), flat.narrow(0, 0, half)},
                  {PlaceOf(1), flat.narrow(0, half, flat.numel() - half)}};
  }
}

void FakeOracle::SetWeightType(checkpoint::DType dtype) {
  facts.dtype = dtype == checkpoint::DType::kBFloat16  ? "bf16"
                : dtype == checkpoint::DType::kFloat16 ? "fp16"
                                                       : "fp32";
  for (size_t i = 0; i < infos.size(); ++i) {
    if (infos[i].role == oracle::Role::kBuffer) continue;
    const bool trainable = infos[i].role == oracle::Role::kTrainable;
    const at::Tensor from = states.at({i, trainable ? oracle::kMaster : oracle::kWeight}).value;
    states.at({i, oracle::kWeight}).value = from.to(TypeOf(dtype)).clone();
    infos[i].states[oracle::kWeight] = dtype;
  }
}

std::shared_ptr<FakeOracle> SoundModel() {
  auto fake = std::make_shared<FakeOracle>();
  oracle::Summary& facts = fake->facts;
  facts.format = "megatron-deepspeed";
  facts.layout = "plain";
  facts.wrapper = "DeepSpeedZeroOptimizer";
  facts.tag = "global_step4";
  facts.iteration = facts.global_steps = 4;
  facts.skipped_steps = 0;
  facts.data_parallel = 2;
  facts.zero_stage = 1;
  facts.dtype = "fp16";
  facts.groups.resize(2);
  facts.groups[0].hyper_parameters = {{"lr", "0.003"}, {"weight_decay", "0.01"}};
  facts.groups[1].hyper_parameters = {{"lr", "0.003"}, {"weight_decay", "0.0"}};
  facts.group_rule_known = true;
  for (const int32_t data : {0, 1}) {
    facts.counters.push_back({"optimizer step", 4, PlaceOf(data)});
    facts.counters.push_back({"cur_scale", 4096, PlaceOf(data)});
    facts.padding.push_back({PlaceOf(data), data, 40, 40, 0, 0, 0, ""});
    facts.files.push_back({PlaceOf(data).file, "optimizer states", true, true});
  }
  facts.counters.push_back(
      {"global_steps", 4, {"global_step4/mp_rank_00_model_states.pt", "", {}}});
  facts.files.push_back({"mp_rank_00_model_states.pt", "model states", true, true});
  fake->Add("word_embeddings", {12, 4}, oracle::Role::kTrainable);
  fake->infos.back().vocabulary_rows = 10;
  fake->infos.back().parallel = "vocabulary";
  fake->infos.back().partition_dim = 0;
  fake->Add("norm.weight", {16}, oracle::Role::kTrainable);
  fake->Add("dense.weight", {8, 4}, oracle::Role::kTrainable);
  fake->Add("dense.bias", {16}, oracle::Role::kTrainable);
  fake->Add("frozen", {3}, oracle::Role::kFrozen);
  fake->Add("count", {2}, oracle::Role::kBuffer);
  return fake;
}

Subject SubjectOf(std::shared_ptr<FakeOracle> fake, const std::string& only) {
  auto subject = SelectSubject(std::move(fake), only);
  if (!subject.ok()) std::abort();
  return std::move(subject).value();
}

}  // namespace certify
