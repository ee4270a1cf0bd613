// shardproof: reshapes distributed-training checkpoints and proves the result.
#include <fmt/core.h>

#include <csignal>
#include <exception>
#include <new>

#include "cli/program.h"
#include "cli/report.h"

int main(int argument_count, char** arguments) {
  // Above a file size limit a write shall fail with an error that names the file.
  std::signal(SIGXFSZ, SIG_IGN);
  // Whatever a library throws past its room is our bug; it must not look like a verdict.
  try {
    return cli::RunProgram(argument_count, arguments, SHARDPROOF_VERSION);
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "shardproof: out of memory\n");
    return cli::kExitBadInput;
  } catch (const std::exception& error) {
    fmt::print(stderr, "shardproof: internal error: {}\n", error.what());
    std::abort();
  }
}
