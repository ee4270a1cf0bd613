// The program as a function, so that tests can call it: parses arguments, runs one command, returns
// the exit code (cli/command.h). Tested by program_test.cc.
#pragma once

#include <string>

namespace cli {

// Whatever is wrong with the arguments is reported like any other error: code Usage, exit code 2,
// and with --json among the arguments as one object on standard output.
int RunProgram(int argument_count, const char* const* arguments, const std::string& version);

}  // namespace cli
