// One command a file. Each Add...Command hangs a subcommand into the application; its callback
// leaves the exit code in `exit_code`: 0 done and certified, 1 refuted, 2 bad input or usage, 3
// undecided. Tested by program_test.cc.
#pragma once

#include <CLI/CLI.hpp>

namespace cli {

void AddInspectCommand(CLI::App& root, int& exit_code);
void AddCheckCommand(CLI::App& root, int& exit_code);
void AddReshapeCommand(CLI::App& root, int& exit_code);
void AddCertifyCommand(CLI::App& root, int& exit_code);
void AddVerifyCommand(CLI::App& root, int& exit_code);
void AddCompareCommand(CLI::App& root, int& exit_code);
void AddDigestCommand(CLI::App& root, int& exit_code);
void AddFixtureCommand(CLI::App& root, int& exit_code);

}  // namespace cli
