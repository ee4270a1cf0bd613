# Files of cli/; ci/tidy.py compares this list with the folder.
set(CLI_SOURCES
)
set(CLI_TESTS
)
