#!/usr/bin/env bash
# Builds the tests of the rooms that read input with AddressSanitizer and UBSan, and runs them. One
# process a room: a process a test would spend its time starting. Ends with a line a room; a room
# that failed is shown whole. ci/test.sh asan sets up first.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
rooms=(checkpoint reshape fixtures oracle cli fuzz)

"$root/ci/build.sh" asan "${rooms[@]/%/_test}"
source "$root/ci/asan_options.sh"

run_room() {
  local log=$root/build-asan/$1_test.log begin=$SECONDS verdict=passed
  "$root/build-asan/$1_test" --gtest_brief=1 >"$log" 2>&1 || verdict=FAILED
  [[ $verdict == passed ]] || cat "$log"
  echo "asan: $1 $verdict after $((SECONDS - begin)) s"
  [[ $verdict == passed ]]
}
export -f run_room
export root
printf '%s\n' "${rooms[@]}" |
  xargs -P "${SHARDPROOF_JOBS:-$(nproc)}" -I{} bash -c 'run_room {}'
