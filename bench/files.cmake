# Files of bench/; ci/tidy.py compares this list with the folder.
set(BENCH_SOURCES
  copy_bench.cc
  crc_bench.cc
  pickle_bench.cc
  plan_bench.cc
)
