// What the commands print for people, and the exit codes. Machines use --json.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "certify/certify.h"
#include "checkpoint/status.h"
#include "reshape/inventory.h"

namespace cli {

inline constexpr int kExitDone = 0;
inline constexpr int kExitRefuted = 1;
inline constexpr int kExitBadInput = 2;
inline constexpr int kExitUndecided = 3;

// Prints the error on standard error, four lines: found, expected, where, advice; with `json` one
// object on standard output. Returns kExitBadInput.
int ReportError(const checkpoint::Error& error, bool json);
int ExitCode(certify::Verdict verdict);
// The end of every command: `exit_code`, or kExitBadInput and a line on standard error where
// standard output could not be written (a full disk behind a redirection).
int FinishOutput(int exit_code);
// A table of laws, then the findings of each, faults first.
void PrintJudgement(const certify::Judgement& judgement, bool certificate);
// The damage report of `check` and `inspect`: files with their records, then tensors. Nothing where
// it is null.
void PrintDamage(const nlohmann::ordered_json& damage);
void PrintNotices(const std::vector<reshape::Notice>& notices);
void PrintJson(const nlohmann::ordered_json& json);
// "1.6 MB", "812 bytes".
std::string Bytes(int64_t bytes);

// Where the certificate goes. An empty path is not written.
struct ReportFiles {
  std::string json, html, junit;
};
// Before any work: no report may lie inside a checkpoint, no two may share a file, and the folder
// must be there. Errors: kUsage, kNotFound.
checkpoint::Status CheckReportPaths(const ReportFiles& files,
                                    const std::vector<std::string>& checkpoints);
// A regular file is replaced as a whole, also behind a link; a device, a pipe or /dev/stdout is
// written to. Errors: kIo, kNotFound.
checkpoint::Status WriteReports(const ReportFiles& files, const certify::Judgement& judgement,
                                const nlohmann::ordered_json& certificate);

}  // namespace cli
