#!/usr/bin/env bash
# Brings a fresh Debian 12 machine to where shardproof builds and its tests run: Debian packages,
# and a Python environment in .deps/venv with the torch wheel (libtorch, and Python's torch.load).
# Run it as often as you like: what is there is skipped.
#
# Settings (environment):
#   SHARDPROOF_TORCH    folder of a torch 2.11 wheel that is there already; nothing is downloaded
#   SHARDPROOF_PYTHON   with it: the Python that has this wheel (default: found from the folder)
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

packages=(
  g++ cmake ninja-build ccache                                   # build
  libfmt-dev nlohmann-json3-dev libcli11-dev                     # text, JSON, command line
  zlib1g-dev libdeflate-dev libxxhash-dev libssl-dev libre2-dev  # docs/decisions says what for
  libgtest-dev librapidcheck-dev libbenchmark-dev xxhash         # tests and benchmarks
  python3 python3-venv xz-utils                                  # torch wheel, ci/, test data
)

say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 2; }

as_root() {
  if [[ $(id -u) -eq 0 ]]; then "$@"; else sudo "$@"; fi
}

package_is_installed() {
  [[ $(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null) == installed ]]
}

install_packages() {
  if ! command -v dpkg-query >/dev/null; then
    say "this is not Debian: install the equivalents of ${packages[*]}"
    return
  fi
  local missing=()
  for package in "${packages[@]}"; do
    package_is_installed "$package" || missing+=("$package")
  done
  if [[ ${#missing[@]} -eq 0 ]]; then
    say "Debian packages: all ${#packages[@]} there"
    return
  fi
  [[ $(id -u) -eq 0 ]] || command -v sudo >/dev/null ||
    fail "missing packages: ${missing[*]}. Run as root, or install sudo"
  local log
  log=$(mktemp)
  # Package lists may be older than the mirror: fetch them once, only when something is missing.
  as_root apt-get update >"$log" 2>&1 || { cat "$log" >&2; fail "apt-get update failed"; }
  as_root env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y --no-install-recommends "${missing[@]}" >"$log" 2>&1 ||
    { tail -n 40 "$log" >&2; fail "apt-get install failed"; }
  rm -f "$log"
  say "Debian packages: installed ${missing[*]}"
}

# The system's Python first: a Python from elsewhere on PATH may lack the venv module.
find_python() {
  local candidate
  for candidate in /usr/bin/python3 python3.11 python3; do
    if "$candidate" -c 'import venv, ensurepip' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  fail "no Python 3 with venv and pip (Debian: python3-venv)"
}

install_torch() {
  if [[ -n ${SHARDPROOF_TORCH:-} ]]; then
    [[ -e $SHARDPROOF_TORCH/lib/libtorch_cpu.so ]] ||
      fail "SHARDPROOF_TORCH=$SHARDPROOF_TORCH holds no lib/libtorch_cpu.so"
    say "libtorch: $SHARDPROOF_TORCH (SHARDPROOF_TORCH)"
    return
  fi
  local venv=$root/.deps/venv requirements=$root/ci/requirements.txt
  local ready wheels
  wheels=$(paste -sd ' ' "$requirements")
  # Written last, named by what was asked for: an interrupted or outdated installation has none.
  ready=$root/.deps/ready-$(sha256sum "$requirements" | cut -c1-12)
  if [[ -e $ready && -x $venv/bin/python ]]; then
    say "Python environment: .deps/venv there ($wheels)"
    return
  fi
  mkdir -p "$root/.deps"
  if [[ ! -x $venv/bin/python ]]; then
    local python
    python=$(find_python)
    "$python" -m venv "$venv"
    say "Python environment: made .deps/venv with $("$python" --version)"
  fi
  say "Python environment: installing $wheels (5 GB on disk, a few minutes)"
  "$venv/bin/python" -m pip install --quiet --no-cache-dir --disable-pip-version-check \
    -r "$requirements"
  "$venv/bin/python" -c 'import torch, numpy'
  touch "$ready"
  say "Python environment: $wheels ready in .deps/venv"
}

install_packages
install_torch
