# Options of the sanitizers' run-time, for programs of build-asan/: source ci/asan_options.sh
# libtorch is not instrumented and keeps what it allocates until the end: leaks are not looked for,
# and containers that cross between it and us carry no marks. The module that judges brings its own
# copies of the rooms below: a global seen twice counts only where the sizes differ.
options=detect_leaks=0:detect_container_overflow=0:detect_odr_violation=1
export ASAN_OPTIONS=$options${ASAN_OPTIONS:+:$ASAN_OPTIONS}
export UBSAN_OPTIONS=print_stacktrace=1${UBSAN_OPTIONS:+:$UBSAN_OPTIONS}
