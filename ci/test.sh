#!/usr/bin/env bash
# Sets up, builds and runs the tests: ci/test.sh [quick|full|peers|gpu|all|asan] [arguments of
# ctest]. Ends with ctest's summary.
#   quick  (default) units, properties, real checkpoints with small bounds: minutes on 2 cores
#   full   quick, and the long ones
#   peers  DeepSpeed itself (installed by ci/peers.sh) loads what shardproof wrote: docs/PEERS.md
#   gpu    needs a device
#   all    everything that is built
#   asan   the rooms that read input, with AddressSanitizer and UBSan (ci/asan.sh)
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
tier=${1:-quick}
[[ $# -eq 0 ]] || shift

case $tier in
  quick | gpu) selection=(-L "^$tier\$") ;;
  peers) selection=(-L '^peers$' --verbose) ;;  # its tables are what it is run for
  full) selection=(-L '^(quick|full)$') ;;
  all) selection=() ;;
  asan) ;;
  *) echo "test: unknown tier '$tier' (known: quick, full, peers, gpu, all, asan)" >&2; exit 2 ;;
esac

"$root/ci/setup.sh"
if [[ $tier == peers || $tier == all ]]; then
  "$root/ci/peers.sh"
  export SHARDPROOF_PEERS_REQUIRED=1  # a tier that was asked for and skipped has shown nothing
fi
"$root/ci/unpack_corpus.sh"
[[ $tier != asan ]] || exec "$root/ci/asan.sh"
"$root/ci/build.sh"

# A new commit draws new cases; the log tells which, and the same commit draws them again.
if [[ -z ${RC_PARAMS:-} ]]; then
  commit=$(git -C "$root" rev-parse HEAD 2>/dev/null || echo 0123456789ab)
  export RC_PARAMS="seed=$((16#${commit:0:12}))"
fi
echo "test: tier $tier, RC_PARAMS=\"$RC_PARAMS\""
exec ctest --test-dir "$root/build" "${selection[@]}" --no-tests=error --output-on-failure \
  -j "${SHARDPROOF_JOBS:-$(nproc)}" "$@"
