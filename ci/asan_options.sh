# Options of the sanitizers' run-time, for programs of build-asan/: source ci/asan_options.sh
# libtorch is not instrumented and keeps what it allocates until the end: leaks are not looked for,
# and containers that cross between it and us carry no marks.
export ASAN_OPTIONS=detect_leaks=0:detect_container_overflow=0${ASAN_OPTIONS:+:$ASAN_OPTIONS}
export UBSAN_OPTIONS=print_stacktrace=1${UBSAN_OPTIONS:+:$UBSAN_OPTIONS}
