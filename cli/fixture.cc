#include "fixtures/fixture.h"

#include <fmt/core.h>

#include <memory>
#include <optional>

#include "cli/command.h"
#include "cli/options.h"
#include "cli/report.h"

namespace cli {

namespace {

using checkpoint::ErrorCode;
using checkpoint::Result;

struct FixtureFlags {
  std::string destination, architecture = "gpt", wrapper, layout = "pipeline", qkv_layout;
  std::string fault, into, optimizer;
  TargetFlags topology;
  fixtures::FixtureSpec spec;
  int64_t bytes = 0;
  std::optional<int32_t> key_value_heads;
  bool list_faults = false, json = false;
};

checkpoint::Error Unknown(const std::string& flag, const std::string& word,
                          const std::string& known) {
  return {ErrorCode::kUsage, "'" + word + "'", known, flag, "Choose one of these."};
}

Result<fixtures::Architecture> ParseArchitecture(const std::string& word) {
  if (word == "gpt") return fixtures::Architecture::kGpt;
  if (word == "bloom") return fixtures::Architecture::kBloom;
  if (word == "llama") return fixtures::Architecture::kLlama;
  if (word == "plain") return fixtures::Architecture::kPlainDeepSpeed;
  return Unknown("--arch", word, "gpt, bloom, llama or plain");
}

// The wrapper that the framework takes for this stage and type, unless one is named.
Result<fixtures::OptimizerWrapper> ParseWrapper(const FixtureFlags& flags,
                                                const fixtures::FixtureSpec& spec) {
  using fixtures::OptimizerWrapper;
  if (flags.wrapper == "zero") return OptimizerWrapper::kZero;
  if (flags.wrapper == "bf16") return OptimizerWrapper::kBf16;
  if (flags.wrapper == "fused") return OptimizerWrapper::kFused;
  if (flags.wrapper == "unfused") return OptimizerWrapper::kUnfused;
  if (!flags.wrapper.empty()) {
    return Unknown("--wrapper", flags.wrapper, "zero, bf16, fused or unfused");
  }
  const bool megatron = spec.model.architecture != fixtures::Architecture::kPlainDeepSpeed;
  const bool bf16 = spec.dtype == checkpoint::DType::kBFloat16;
  if (spec.zero_stage == 2) return OptimizerWrapper::kZero;
  if (spec.zero_stage == 1) {
    return bf16 && megatron ? OptimizerWrapper::kBf16 : OptimizerWrapper::kZero;
  }
  if (spec.dtype == checkpoint::DType::kFloat32) return OptimizerWrapper::kFp32;
  if (bf16 && spec.pipeline_layout) return OptimizerWrapper::kBf16;
  return megatron ? OptimizerWrapper::kFused : OptimizerWrapper::kUnfused;
}

Result<fixtures::FixtureSpec> ToSpec(const FixtureFlags& flags) {
  fixtures::FixtureSpec spec = flags.spec;
  CK_TRY(spec.model.architecture, ParseArchitecture(flags.architecture));
  spec.model.key_value_heads = flags.key_value_heads.value_or(spec.model.heads);
  spec.tensor_parallel = flags.topology.tensor_parallel.value_or(1);
  spec.pipeline_parallel = flags.topology.pipeline_parallel.value_or(1);
  spec.data_parallel = flags.topology.data_parallel.value_or(1);
  spec.zero_stage = flags.topology.zero_stage.value_or(0);
  if (!flags.topology.dtype.empty()) {
    CK_TRY(spec.dtype, ParseDType(flags.topology.dtype));
  }
  if (flags.layout != "pipeline" && flags.layout != "plain") {
    return Unknown("--layout", flags.layout, "pipeline or plain");
  }
  spec.pipeline_layout = flags.layout == "pipeline";
  if (!flags.qkv_layout.empty()) {
    const auto order = checkpoint::QkvLayoutFromName(flags.qkv_layout);
    if (!order) {
      return Unknown("--qkv-layout", flags.qkv_layout, "per-head-group, per-shard, per-head-inner");
    }
    spec.model.qkv_layout = *order;
  }
  if (flags.optimizer == "torch-adam") {
    spec.base_optimizer = fixtures::BaseOptimizer::kTorchAdam;
  } else if (flags.optimizer == "fused-adam") {
    spec.base_optimizer = fixtures::BaseOptimizer::kFusedAdam;
  } else if (!flags.optimizer.empty()) {
    return Unknown("--optimizer", flags.optimizer, "torch-adam or fused-adam");
  }
  CK_TRY(spec.wrapper, ParseWrapper(flags, spec));
  spec.tag = fmt::format("global_step{}", spec.steps);
  return flags.bytes > 0 ? fixtures::WithBytes(spec, flags.bytes) : spec;
}

int ListFaults(bool json) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const fixtures::Fault& fault : fixtures::Faults()) {
    list.push_back({{"name", fault.name},
                    {"kind", fault.kind},
                    {"does", fault.does},
                    {"law", fault.law},
                    {"needs_pair", fault.needs_pair}});
    if (!json) {
      fmt::print("{:<34} {:<5} {:<3} {} {}\n", fault.name, fault.kind, fault.law,
                 fault.needs_pair ? "[certify]" : "[check]  ", fault.does);
    }
  }
  if (json) PrintJson({{"faults", list}});
  return kExitDone;
}

checkpoint::Status WriteWithFault(const FixtureFlags& flags, const fixtures::FixtureSpec& spec) {
  if (!flags.into.empty()) return fixtures::PlantFault(flags.into, flags.fault, spec.seed);
  return fixtures::WriteFixture(flags.destination, spec, {.fault = flags.fault, .flush = true});
}

int RunFixture(const FixtureFlags& flags) {
  if (flags.list_faults) return ListFaults(flags.json);
  if (flags.destination.empty() == flags.into.empty() ||
      (!flags.into.empty() && flags.fault.empty())) {
    return ReportError({ErrorCode::kUsage, "neither or both of DST and --into, or --into alone",
                        "DST, or --into CKPT --fault NAME", "fixture",
                        "`fixture DST` writes a new folder; `--into` changes an existing one."},
                       flags.json);
  }
  auto spec = ToSpec(flags);
  if (!spec.ok()) return ReportError(spec.error(), flags.json);
  const auto written = WriteWithFault(flags, spec.value());
  if (!written.ok()) return ReportError(written.error(), flags.json);
  if (flags.json) {
    PrintJson({{flags.into.empty() ? "wrote" : "changed",
                flags.into.empty() ? flags.destination : flags.into},
               {"fault", flags.fault}});
    return kExitDone;
  }
  fmt::print("{}{}\n", flags.into.empty() ? "wrote " + flags.destination : "changed " + flags.into,
             flags.fault.empty() ? std::string() : " with fault " + flags.fault);
  return kExitDone;
}

void AddModelFlags(CLI::App& app, FixtureFlags& flags) {
  fixtures::ModelSpec& model = flags.spec.model;
  const auto positive = CLI::Range(1, 1'000'000);
  app.add_option("--arch", flags.architecture, "gpt, bloom, llama or plain")->capture_default_str();
  app.add_option("--layers", model.layers, "transformer layers")->check(positive);
  app.add_option("--hidden", model.hidden, "hidden size")->check(positive);
  app.add_option("--heads", model.heads, "attention heads")->check(positive);
  app.add_option("--kv-heads", flags.key_value_heads, "key/value heads; absent: as many as heads")
      ->check(positive);
  app.add_option("--ffn", model.feed_forward, "feed-forward size")->check(positive);
  app.add_option("--seq", model.sequence, "positions")->check(positive);
  app.add_option("--vocab", model.vocabulary, "vocabulary rows before padding")->check(positive);
  app.add_option("--vocab-divisor", model.vocabulary_divisor, "vocabulary padding divisor")
      ->check(positive);
  app.add_flag("--bigscience", model.bigscience, "the older fork's layout");
  app.add_option("--qkv-layout", flags.qkv_layout, "row order of fused QKV");
  app.add_option("--bytes", flags.bytes, "choose sizes for about this many bytes on disk")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 50));
}

}  // namespace

void AddFixtureCommand(CLI::App& root, int& exit_code) {
  auto flags = std::make_shared<FixtureFlags>();
  CLI::App* app = root.add_subcommand(
      "fixture",
      "write a position-coded checkpoint of any topology, sound or with a planted fault");
  app->add_option("destination", flags->destination, "run folder to write; must not exist");
  AddTopologyFlags(*app, flags->topology);
  AddModelFlags(*app, *flags);
  app->add_option("--layout", flags->layout, "pipeline or plain")->capture_default_str();
  app->add_option("--wrapper", flags->wrapper, "zero, bf16, fused or unfused");
  app->add_option("--optimizer", flags->optimizer, "torch-adam or fused-adam");
  app->add_option("--seed", flags->spec.seed, "seed of the position code")->capture_default_str();
  app->add_option("--steps", flags->spec.steps, "optimizer steps taken")
      ->check(CLI::Range(0, 1 << 30));
  app->add_flag("--round-robin", flags->spec.round_robin, "ZeRO: round_robin_gradients");
  app->add_flag("--align", flags->spec.parameter_alignment, "ZeRO: parameter_alignment");
  app->add_flag("--elastic", flags->spec.elastic, "ZeRO: elastic_checkpoint");
  app->add_flag("--legacy", flags->spec.legacy_container, "plain: non-zip torch.save files");
  app->add_flag("--edge", flags->spec.edge, "plain: zero-element parameter, unused one, odd names");
  app->add_flag("--sizes-only", flags->spec.sizes_only,
                "tensors are holes that take no disk space: for `reshape --dry-run` at real sizes");
  app->add_option("--fault", flags->fault, "plant this fault");
  app->add_option("--into", flags->into, "plant it into this existing checkpoint instead");
  app->add_flag("--list-faults", flags->list_faults, "list the faults");
  app->add_flag("--json", flags->json, "machine-readable output");
  app->callback([flags, &exit_code] { exit_code = RunFixture(*flags); });
}

}  // namespace cli
