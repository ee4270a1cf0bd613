#!/usr/bin/env bash
# Makes .deps/peers: a Python environment with the frameworks themselves, for tests of label peers.
# Never needed to build or to use shardproof. What is there is skipped.
#
# Settings (environment):
#   SHARDPROOF_PEERS    such an environment that is there already; nothing is downloaded
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
requirements=$root/ci/peers_requirements.txt
wanted=$(paste -sd ' ' "$requirements")

say() { printf 'peers: %s\n' "$*"; }

if [[ -n ${SHARDPROOF_PEERS:-} ]]; then
  [[ -x $SHARDPROOF_PEERS/bin/python ]] ||
    { say "SHARDPROOF_PEERS=$SHARDPROOF_PEERS holds no bin/python" >&2; exit 2; }
  say "$SHARDPROOF_PEERS (SHARDPROOF_PEERS)"
  exit 0
fi

place=$root/.deps/peers
# Written last, named by what was asked for: an interrupted or outdated installation has none.
ready=$place/ready-$(sha256sum "$requirements" | cut -c1-12)
if [[ -e $ready ]]; then
  say ".deps/peers there ($wanted)"
  exit 0
fi

python=/usr/bin/python3
"$python" -c 'import venv, ensurepip' 2>/dev/null || python=python3
[[ -x $place/bin/python ]] || "$python" -m venv "$place"
say "installing $wanted (6 GB on disk, some minutes)"
DS_BUILD_OPS=0 "$place/bin/python" -m pip install --quiet --no-cache-dir \
  --disable-pip-version-check -r "$requirements"

# The optimizer of the first story is compiled on first use, for minutes: not in a test.
say "compiling DeepSpeed's FusedAdam for the CPU"
log=$place/fused_adam.log
PATH=$place/bin:$PATH DS_ACCELERATOR=cpu TORCH_EXTENSIONS_DIR=$place/torch_extensions \
  "$place/bin/python" -c 'from deepspeed.ops.op_builder.cpu import FusedAdamBuilder
FusedAdamBuilder().load()' >"$log" 2>&1 || { tail -n 40 "$log" >&2; exit 2; }
touch "$ready"
say "$wanted ready in .deps/peers"
