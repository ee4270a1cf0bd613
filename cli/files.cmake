# Files of cli/; ci/tidy.py compares this list with the folder.
set(CLI_SOURCES
  certify.cc
  check.cc
  compare.cc
  digest.cc
  fixture.cc
  inspect.cc
  late_certify.cc
  options.cc
  program.cc
  report.cc
  reshape.cc
  verify.cc
)
set(CLI_MAIN main.cc)
set(CLI_TESTS
  late_certify_test.cc
  options_test.cc
  program_test.cc
)
