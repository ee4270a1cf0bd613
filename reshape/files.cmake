# Files of reshape/; ci/tidy.py compares this list with the folder.
set(RESHAPE_SOURCES
)
set(RESHAPE_TESTS
)
