# Files of oracle/; ci/tidy.py compares this list with the folder.
set(ORACLE_SOURCES
)
set(ORACLE_TESTS
)
