#include "reshape/reshape.h"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <memory>

#include "checkpoint/file.h"
#include "cli/certify_step.h"
#include "cli/command.h"
#include "cli/options.h"
#include "cli/report.h"
#include "reshape/other_targets.h"

namespace cli {

namespace {

struct ReshapeFlags {
  std::string source, target;
  DeclarationFlags declarations;
  TargetFlags goal;
  ReportFiles reports;
  int32_t ranks_max = 16;
  bool list_targets = false, dry_run = false, no_certify = false, no_flush = false, json = false;
};

std::string TopologyName(const reshape::Topology& topology) {
  return fmt::format("TP={} PP={} DP={} ZeRO-{}", topology.tensor_parallel_size,
                     topology.pipeline_parallel_size, topology.data_parallel_size,
                     topology.zero_stage);
}

// A line that overwrites itself, at most five times a second: bytes, rate, time left.
std::function<void(const reshape::Progress&)> TerminalProgress() {
  if (isatty(STDERR_FILENO) == 0) return nullptr;
  using Clock = std::chrono::steady_clock;
  return [start = Clock::now(), last = Clock::time_point()](const reshape::Progress& done) mutable {
    const auto now = Clock::now();
    const bool finished = done.bytes_done >= done.bytes_total;
    if (!finished && now - last < std::chrono::milliseconds(200)) return;
    last = now;
    const double seconds = std::chrono::duration<double>(now - start).count();
    const double rate = seconds > 0 ? static_cast<double>(done.bytes_done) / seconds : 0;
    const double left =
        rate > 0 ? static_cast<double>(done.bytes_total - done.bytes_done) / rate : 0;
    fmt::print(stderr, "\r{} of {}, {}/s, {:.0f} s left   {}", Bytes(done.bytes_done),
               Bytes(done.bytes_total), Bytes(static_cast<int64_t>(rate)), left,
               finished ? "\n" : "");
    std::fflush(stderr);
  };
}

void PrintTargets(const std::vector<reshape::Topology>& targets,
                  const reshape::OtherTargets& other) {
  for (const reshape::Topology& target : targets) fmt::print("{}\n", TopologyName(target));
  if (!other.reachable.empty()) fmt::print("other forms: {}\n", fmt::join(other.reachable, ", "));
  for (const reshape::LockedTargets& locked : other.locked) {
    fmt::print("not listed: {} {}: {}. {}\n", locked.flag, fmt::join(locked.values, ", "),
               locked.why, locked.unlock);
  }
}

int ListTargets(const ReshapeFlags& flags, const reshape::ReshapeOptions& options) {
  const auto source = reshape::ReadInventory(flags.source, options.read);
  if (!source.ok()) return ReportError(source.error(), flags.json);
  const auto targets = reshape::LegalTargets(source.value(), options.target, flags.ranks_max);
  const auto other = reshape::FindOtherTargets(source.value(), options.target, flags.ranks_max);
  if (!flags.json) {
    PrintTargets(targets, other);
    return kExitDone;
  }
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  nlohmann::ordered_json locked_list = nlohmann::ordered_json::array();
  for (const reshape::Topology& target : targets) {
    list.push_back({{"tp", target.tensor_parallel_size},
                    {"pp", target.pipeline_parallel_size},
                    {"dp", target.data_parallel_size},
                    {"zero", target.zero_stage}});
  }
  for (const reshape::LockedTargets& locked : other.locked) {
    locked_list.push_back({{"flag", locked.flag},
                           {"values", locked.values},
                           {"why", locked.why},
                           {"unlock", locked.unlock}});
  }
  PrintJson({{"targets", list}, {"other_forms", other.reachable}, {"not_listed", locked_list}});
  return kExitDone;
}

// Anonymous memory: measured where something was written. A dry run adds the buffers of the copy to
// what it holds itself, the object trees and the plan.
int64_t MemoryOf(const reshape::ReshapeReport& report, bool dry_run) {
  return report.anonymous_bytes_peak + (dry_run ? report.peak_bytes_estimate : 0);
}

nlohmann::ordered_json ReportJson(const reshape::ReshapeReport& report, bool dry_run) {
  const auto topology = [](const reshape::Topology& of) {
    return nlohmann::ordered_json{{"tp", of.tensor_parallel_size},
                                  {"pp", of.pipeline_parallel_size},
                                  {"dp", of.data_parallel_size},
                                  {"zero", of.zero_stage}};
  };
  nlohmann::ordered_json notices = nlohmann::ordered_json::array();
  for (const reshape::Notice& notice : report.notices) {
    notices.push_back({{"kind", notice.kind}, {"text", notice.text}, {"names", notice.names}});
  }
  return {{"source", topology(report.source_topology)},
          {"target", topology(report.target_topology)},
          {"step_folder", report.step_folder_name},
          {"files", report.files},
          {"bytes", report.bytes},
          {"tensors", report.tensors},
          {"copies", report.copies},
          {"memory_bytes", MemoryOf(report, dry_run)},
          {"sums_checked", report.sums_checked},
          {"notices", notices}};
}

void PrintReport(const ReshapeFlags& flags, const reshape::ReshapeReport& report) {
  fmt::print("{} -> {}: {} files, {}, {} tensors in {} copies, about {} of memory{}\n",
             TopologyName(report.source_topology), TopologyName(report.target_topology),
             report.files, Bytes(report.bytes), report.tensors, report.copies,
             Bytes(MemoryOf(report, flags.dry_run)),
             flags.dry_run ? " (dry run: nothing written, no sums of the source checked)"
                           : ", written to " + flags.target);
  PrintNotices(report.notices);
}

// What nobody looked at where nobody certifies.
void AddUnjudgedNotice(const ReshapeFlags& flags, reshape::ReshapeReport& report) {
  if (!flags.no_certify || flags.dry_run) return;
  report.notices.push_back({"replicas-not-compared",
                            "Nothing was certified: of what several ranks of the source hold, "
                            "replicated weights alone were compared, masters and moments were "
                            "not. `shardproof certify` does.",
                            {}});
}

int CertifyTarget(const ReshapeFlags& flags) {
  const auto source_declared = ToDeclared(flags.declarations);
  if (!source_declared.ok()) return ReportError(source_declared.error(), flags.json);
  certify::Declared target_declared = source_declared.value();
  target_declared.tag.clear();
  target_declared.universal = flags.goal.format == "universal";
  target_declared.param_groups = flags.goal.param_groups_file;
  target_declared.moments_rescale = flags.goal.moments == "rescale";
  CertifyStep step{.source = flags.source,
                   .target = flags.target,
                   .source_declared = source_declared.value(),
                   .target_declared = target_declared,
                   .reports = flags.reports,
                   .json = flags.json};
  return CertifyAndReport(step);
}

// The step folder that --universal means: the one latest_universal names. A source that is a step
// folder itself is what it is.
checkpoint::Status FollowUniversal(const ReshapeFlags& flags, std::string& tag) {
  if (!flags.declarations.universal || !tag.empty()) return checkpoint::Done{};
  const std::filesystem::path run = flags.source;
  auto text = checkpoint::ReadSmallFile(run / "latest_universal", 4096);
  std::error_code code;
  if (!text.ok() && std::filesystem::exists(run / "latest", code)) {
    return checkpoint::Error{checkpoint::ErrorCode::kMissingFile, "no readable latest_universal",
                             "a run folder with a universal folder beside its steps",
                             (run / "latest_universal").string(),
                             "Leave --universal out to reshape the native files."};
  }
  if (!text.ok()) return checkpoint::Done{};
  tag = text.value().substr(0, text.value().find_last_not_of(" \r\n") + 1);
  return checkpoint::Done{};
}

// Reports that this call would never write.
checkpoint::Status CheckReportsAreWritten(const ReshapeFlags& flags) {
  const bool asked =
      !flags.reports.json.empty() || !flags.reports.html.empty() || !flags.reports.junit.empty();
  if (!asked || (!flags.dry_run && !flags.no_certify && !flags.list_targets))
    return checkpoint::Done{};
  return checkpoint::Error{
      checkpoint::ErrorCode::kUsage, "a report is asked for, but nothing is certified",
      "--certificate, --html and --junit without --no-certify, --dry-run and --list-targets",
      "reshape", "Leave one of them out; `certify` writes reports of a target that is there."};
}

int RunReshape(const ReshapeFlags& flags) {
  reshape::ReshapeOptions options;
  const auto reports = CheckReportsAreWritten(flags);
  if (!reports.ok()) return ReportError(reports.error(), flags.json);
  auto read = ToReadOptions(flags.declarations, flags.goal);
  if (!read.ok()) return ReportError(read.error(), flags.json);
  options.read = std::move(read).value();
  const auto followed = FollowUniversal(flags, options.read.tag);
  if (!followed.ok()) return ReportError(followed.error(), flags.json);
  auto goal = ToTargetSpec(flags.goal);
  if (!goal.ok()) return ReportError(goal.error(), flags.json);
  options.target = std::move(goal).value();
  if (flags.list_targets) return ListTargets(flags, options);
  if (flags.target.empty()) {
    return ReportError({checkpoint::ErrorCode::kUsage, "no target folder", "SRC DST", "reshape",
                        "Name the folder to write; it must not exist."},
                       flags.json);
  }
  const auto paths = CheckReportPaths(flags.reports, {flags.source, flags.target});
  if (!paths.ok()) return ReportError(paths.error(), flags.json);
  options.dry_run = flags.dry_run;
  options.flush = !flags.no_flush;
  options.threads = flags.declarations.threads;
  if (!flags.json) options.progress = TerminalProgress();
  auto report = reshape::Reshape(flags.source, flags.target, options);
  if (!report.ok()) return ReportError(report.error(), flags.json);
  AddUnjudgedNotice(flags, report.value());
  const bool certifies = !flags.dry_run && !flags.no_certify;
  if (!flags.json) PrintReport(flags, report.value());
  if (flags.json && !certifies) PrintJson(ReportJson(report.value(), flags.dry_run));
  return certifies ? CertifyTarget(flags) : kExitDone;
}

}  // namespace

void AddReshapeCommand(CLI::App& root, int& exit_code) {
  auto flags = std::make_shared<ReshapeFlags>();
  CLI::App* app = root.add_subcommand(
      "reshape", "write a checkpoint of another topology, stage, type or layout, and certify it");
  app->add_option("source", flags->source, "run folder or step folder")->required();
  app->add_option("target", flags->target, "run folder to write; must not exist");
  AddTargetFlags(*app, flags->goal);
  app->add_flag("--list-targets", flags->list_targets, "print the targets that can be reached");
  app->add_option("--max-ranks", flags->ranks_max, "largest world size for --list-targets")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app->add_flag("--dry-run", flags->dry_run, "plan and check, write nothing");
  app->add_flag("--no-certify", flags->no_certify, "do not certify the target");
  app->add_flag("--no-flush", flags->no_flush, "do not wait until the disk has the bytes");
  app->add_flag("--json", flags->json, "machine-readable output");
  AddReportFlags(*app, flags->reports);
  AddDeclarationFlags(*app, flags->declarations, /*with_only=*/false);
  app->callback([flags, &exit_code] { exit_code = RunReshape(*flags); });
}

}  // namespace cli
