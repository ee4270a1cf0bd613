#!/usr/bin/env bash
# Builds everything, or the targets that are named: ci/build.sh [release|asan|fuzz] [TARGET...].
#   release  (default) leaves build/shardproof and the tests beside it
#   asan     the same with AddressSanitizer and UBSan, in build-asan/
#   fuzz     the fuzz targets, in build-fuzz/; needs clang (Debian: clang)
# Needs ci/setup.sh once before.
# Settings: SHARDPROOF_TORCH and SHARDPROOF_PYTHON (see ci/setup.sh), SHARDPROOF_JOBS (default: one
# a core).
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
preset=${1:-release}
[[ $# -eq 0 ]] || shift
targets=("$@")

case $preset in
  release) folder=$root/build options=(-DCMAKE_BUILD_TYPE=Release) ;;
  asan) folder=$root/build-asan options=(-DCMAKE_BUILD_TYPE=Asan) ;;
  fuzz)
    folder=$root/build-fuzz targets=(fuzz_targets)
    options=(-DCMAKE_BUILD_TYPE=Fuzz -DCMAKE_CXX_COMPILER=clang++ -DSHARDPROOF_FUZZ=ON
             -DSHARDPROOF_TESTS=OFF)
    command -v clang++ >/dev/null || { echo "build: fuzz needs clang++" >&2; exit 2; }
    ;;
  *) echo "build: unknown preset '$preset' (known: release, asan, fuzz)" >&2; exit 2 ;;
esac

if [[ -n ${SHARDPROOF_TORCH:-} ]]; then
  # The folder is PREFIX/lib/python3.N/site-packages/torch.
  python=${SHARDPROOF_PYTHON:-$(cd "$SHARDPROOF_TORCH/../../../.." && pwd)/bin/python}
  options+=("-DSHARDPROOF_TORCH=$SHARDPROOF_TORCH" "-DSHARDPROOF_PYTHON=$python")
fi

# The build runs each test program once to list its tests. docs/HACKING.md says why these options.
source "$root/ci/asan_options.sh"
log=$folder/configure.log
mkdir -p "$folder"
cmake -G Ninja -S "$root" -B "$folder" "${options[@]}" >"$log" 2>&1 || { cat "$log" >&2; exit 2; }
ninja -C "$folder" -j "${SHARDPROOF_JOBS:-$(nproc)}" "${targets[@]}"
echo "build: $preset is in ${folder#"$root"/}"
