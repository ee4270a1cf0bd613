# Files of property_tests/; ci/tidy.py compares this list with the folder.
set(PROPERTY_TESTS_SOURCES
)
set(PROPERTY_TESTS_TESTS
)
