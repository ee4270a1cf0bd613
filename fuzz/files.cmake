# Files of fuzz/; ci/tidy.py compares this list with the folder.
set(FUZZ_SOURCES
  pickle.cc
  rules.cc
  torch_file.cc
  zip.cc
)
set(FUZZ_TESTS
  replay_test.cc
)
