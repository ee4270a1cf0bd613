# Files of property_tests/; ci/tidy.py compares this list with the folder.
set(PROPERTY_TESTS_SOURCES
)
set(PROPERTY_TESTS_TESTS
  case.cc
  commuting_square_test.cc
  corpus_acceptance_test.cc
  generators_test.cc
  interruption_test.cc
  planted_faults_test.cc
  round_trip_test.cc
)
