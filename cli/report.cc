#include "cli/report.h"

#include <fmt/core.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <set>

#include "checkpoint/file.h"

namespace cli {

namespace {

constexpr size_t kNamesShown = 6;

const char* VerdictWord(certify::Verdict verdict) {
  switch (verdict) {
    case certify::Verdict::kHeld:
      return "held";
    case certify::Verdict::kBroken:
      return "BROKEN";
    case certify::Verdict::kUndecided:
      return "undecided";
    case certify::Verdict::kNotApplicable:
      return "not applicable";
  }
  return "?";
}

const char* CertificateWord(certify::Verdict verdict) {
  if (verdict == certify::Verdict::kHeld) return "CERTIFIED";
  return verdict == certify::Verdict::kBroken ? "REFUTED" : "UNDECIDED";
}

void PrintFindings(const certify::LawResult& law, bool faults) {
  int64_t shown = 0;
  for (const certify::Finding& finding : law.findings) {
    if (finding.fault != faults) continue;
    fmt::print("  {} {}: {}\n", law.law, finding.fault ? "fault" : "notice", finding.text);
    ++shown;
  }
  const auto kept = static_cast<int64_t>(law.findings.size());
  if (faults && law.findings_total > kept && shown > 0) {
    fmt::print("  {} and {} more findings of these kinds\n", law.law, law.findings_total - kept);
  }
}

std::string JoinNames(const std::vector<std::string>& names) {
  std::string joined;
  for (size_t i = 0; i < names.size() && i < kNamesShown; ++i) {
    joined += (i == 0 ? "" : ", ") + names[i];
  }
  if (names.size() > kNamesShown) joined += fmt::format(", ... ({} in all)", names.size());
  return joined;
}

}  // namespace

int ReportError(const checkpoint::Error& error, bool json) {
  if (json) {
    PrintJson({{"error",
                {{"code", checkpoint::ErrorCodeName(error.code)},
                 {"found", error.found},
                 {"expected", error.expected},
                 {"where", error.where},
                 {"advice", error.advice}}}});
    return kExitBadInput;
  }
  fmt::print(stderr, "shardproof: {}\n  found:      {}\n  expected:   {}\n  where:      {}\n",
             checkpoint::ErrorCodeName(error.code), error.found, error.expected, error.where);
  if (!error.advice.empty()) fmt::print(stderr, "  what to do: {}\n", error.advice);
  return kExitBadInput;
}

int ExitCode(certify::Verdict verdict) {
  if (verdict == certify::Verdict::kHeld) return kExitDone;
  return verdict == certify::Verdict::kBroken ? kExitRefuted : kExitUndecided;
}

void PrintJudgement(const certify::Judgement& judgement, bool certificate) {
  for (const certify::LawResult& law : judgement.laws) {
    fmt::print("{:<3} {:<14} {:>12} {:<10} {}{}\n", law.law, VerdictWord(law.verdict), law.compared,
               law.unit, law.title, law.reason.empty() ? "" : ": " + law.reason);
  }
  for (const bool faults : {true, false}) {
    for (const certify::LawResult& law : judgement.laws) PrintFindings(law, faults);
  }
  PrintDamage(judgement.damage);
  if (!judgement.root.empty()) {
    fmt::print(
        "root: {}{}{}\n", judgement.root,
        judgement.consequences.empty() ? "" : "; follows: ", JoinNames(judgement.consequences));
  }
  fmt::print("verdict: {}\n",
             certificate ? CertificateWord(judgement.verdict) : VerdictWord(judgement.verdict));
}

void PrintDamage(const nlohmann::ordered_json& damage) {
  if (damage.is_null()) return;
  for (const auto& file : damage["files"]) {
    fmt::print("damaged {}: {}\n", file.value("name", ""), file.value("why", ""));
    if (!file["intact"].empty())
      fmt::print("  intact: {} records: {}\n", file["intact"].size(),
                 JoinNames(file["intact"].get<std::vector<std::string>>()));
    for (const auto& record : file["lost"])
      fmt::print("  lost:   {}: {}\n", record.value("record", ""), record.value("why", ""));
  }
  for (const auto& tensor : damage["tensors"]) fmt::print("  {}\n", tensor.value("text", ""));
  fmt::print("  note: {}\n", damage.value("note", ""));
}

void PrintNotices(const std::vector<reshape::Notice>& notices) {
  for (const reshape::Notice& notice : notices) {
    fmt::print("  notice {}: {}{}{}\n", notice.kind, notice.text, notice.names.empty() ? "" : " ",
               notice.names.empty() ? "" : "[" + JoinNames(notice.names) + "]");
  }
}

void PrintJson(const nlohmann::ordered_json& json) {
  const std::string text =
      json.dump(2, ' ', /*ensure_ascii=*/false, nlohmann::ordered_json::error_handler_t::replace);
  fmt::print("{}\n", text);
}

std::string Bytes(int64_t bytes) {
  constexpr const char* kUnits[] = {"kB", "MB", "GB", "TB", "PB"};
  if (bytes < 1000) return fmt::format("{} bytes", bytes);
  double amount = static_cast<double>(bytes) / 1000;
  size_t unit = 0;
  while (amount >= 999.95 && unit + 1 < std::size(kUnits)) {
    amount /= 1000;
    ++unit;
  }
  return fmt::format("{:.1f} {}", amount, kUnits[unit]);
}

namespace {

namespace fs = std::filesystem;

// The file that a report's path means: links are followed, also one that leads to nothing yet.
fs::path FollowLinks(fs::path path) {
  constexpr int kLinksMax = 40;  // as the kernel
  std::error_code code;
  for (int i = 0; i < kLinksMax && fs::is_symlink(path, code); ++i) {
    // A descriptor of a process, as /dev/stdout is one: its link is no path.
    if (path.string().starts_with("/proc/")) return path;
    const fs::path next = fs::read_symlink(path, code);
    path = next.is_absolute() ? next : path.parent_path() / next;
  }
  return path;
}

// A regular file is replaced as a whole. Devices, pipes and descriptors are written to: replacing
// them would take them from everybody else.
checkpoint::Status WriteReport(const std::string& report, const std::string& text) {
  std::error_code code;
  const fs::path path = FollowLinks(report);
  const bool descriptor = path.string().starts_with("/proc/");
  if (!descriptor && (fs::is_regular_file(path, code) || !fs::exists(path, code)))
    return checkpoint::WriteSmallFile(path, text, /*flush=*/true);
  std::fflush(stdout);
  std::FILE* file = std::fopen(path.c_str(), "a");
  if (file == nullptr) return checkpoint::SystemError(errno, "open for the report", report);
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  const int write_error = errno;
  if (std::fclose(file) != 0 || !written)
    return checkpoint::SystemError(written ? errno : write_error, "write the report", report);
  return checkpoint::Done{};
}

}  // namespace

int FinishOutput(int exit_code) {
  const bool flushed = std::fflush(stdout) == 0;
  if (flushed && std::ferror(stdout) == 0) return exit_code;
  fmt::print(stderr, "shardproof: standard output could not be written\n");
  return kExitBadInput;
}

checkpoint::Status CheckReportPaths(const ReportFiles& files,
                                    const std::vector<std::string>& checkpoints) {
  std::set<fs::path> seen;
  for (const std::string& report : {files.json, files.html, files.junit}) {
    if (report.empty()) continue;
    std::error_code code;
    const fs::path path = fs::weakly_canonical(fs::absolute(report, code), code);
    if (!fs::is_directory(path.parent_path(), code)) {
      return checkpoint::Error{checkpoint::ErrorCode::kNotFound, "no such folder",
                               "a folder for the report", report, "Make it, or name another."};
    }
    if (!seen.insert(path).second) {
      return checkpoint::Error{checkpoint::ErrorCode::kUsage, "two reports into one file",
                               "a file for each", report, "Name another path for one of them."};
    }
    for (const std::string& checkpoint : checkpoints) {
      if (checkpoint.empty()) continue;
      const fs::path folder = fs::weakly_canonical(fs::absolute(checkpoint, code), code);
      const std::string inner = path.lexically_relative(folder).string();
      if (inner.empty() || inner.starts_with("..")) continue;
      return checkpoint::Error{checkpoint::ErrorCode::kUsage, "a report inside " + checkpoint,
                               "a path outside of both checkpoints", report,
                               "Reports never go into a checkpoint: name another path."};
    }
  }
  return checkpoint::Done{};
}

checkpoint::Status WriteReports(const ReportFiles& files, const certify::Judgement& judgement,
                                const nlohmann::ordered_json& certificate) {
  if (!files.json.empty()) {
    CK_DO(WriteReport(files.json, certificate.dump(2) + "\n"));
  }
  if (!files.html.empty()) {
    CK_DO(WriteReport(files.html, certify::CertificateHtml(certificate)));
  }
  if (!files.junit.empty()) {
    CK_DO(WriteReport(files.junit, certify::JudgementJUnit(judgement, "shardproof")));
  }
  return checkpoint::Done{};
}

}  // namespace cli
