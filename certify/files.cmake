# Files of certify/; ci/tidy.py compares this list with the folder.
set(CERTIFY_SOURCES
)
set(CERTIFY_TESTS
)
