#!/usr/bin/env bash
# Builds everything: ci/build.sh [release]. Leaves build/shardproof and the tests beside it.
# Needs ci/setup.sh once before.
# Settings: SHARDPROOF_TORCH and SHARDPROOF_PYTHON (see ci/setup.sh), SHARDPROOF_JOBS (default: one
# a core).
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
preset=${1:-release}

case $preset in
  release) folder=$root/build options=(-DCMAKE_BUILD_TYPE=Release) ;;
  *) echo "build: unknown preset '$preset' (known: release)" >&2; exit 2 ;;
esac

if [[ -n ${SHARDPROOF_TORCH:-} ]]; then
  # The folder is PREFIX/lib/python3.N/site-packages/torch.
  python=${SHARDPROOF_PYTHON:-$(cd "$SHARDPROOF_TORCH/../../../.." && pwd)/bin/python}
  options+=("-DSHARDPROOF_TORCH=$SHARDPROOF_TORCH" "-DSHARDPROOF_PYTHON=$python")
fi

log=$folder/configure.log
mkdir -p "$folder"
cmake -G Ninja -S "$root" -B "$folder" "${options[@]}" >"$log" 2>&1 || { cat "$log" >&2; exit 2; }
ninja -C "$folder" -j "${SHARDPROOF_JOBS:-$(nproc)}"
echo "build: $preset is in ${folder#"$root"/}"
