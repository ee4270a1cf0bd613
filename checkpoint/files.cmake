# Files of checkpoint/; ci/tidy.py compares this list with the folder.
set(CHECKPOINT_SOURCES
  container.cc
  crc.cc
  directory.cc
  dtype.cc
  file.cc
  legacy_reader.cc
  status.cc
  storage_id.cc
  tensor.cc
  zip_reader.cc
  zip_writer.cc
)
set(CHECKPOINT_TESTS
)
