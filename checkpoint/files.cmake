# Files of checkpoint/; ci/tidy.py compares this list with the folder.
set(CHECKPOINT_SOURCES
)
set(CHECKPOINT_TESTS
)
