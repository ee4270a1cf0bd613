# Files of property_tests/; ci/tidy.py compares this list with the folder.
set(PROPERTY_TESTS_SOURCES
)
set(PROPERTY_TESTS_TESTS
  corpus_acceptance_test.cc
  planted_faults_test.cc
)
