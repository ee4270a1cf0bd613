#!/usr/bin/env bash
# Packs real checkpoints for the tests: ci/pack_corpus.sh SOURCE RUN... (a RUN is a folder below
# SOURCE, such as megatron_deepspeed/r1). Writes fixtures/corpus.tar.xz and its sha256, and prints
# the rows of the table in fixtures/CORPUS.md. The same files give the same archive byte for byte.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
[[ $# -ge 2 ]] || { echo "usage: ci/pack_corpus.sh SOURCE RUN..." >&2; exit 2; }
source=$1
shift
export LC_ALL=C

# Whole truth arrays and training losses stay out: digests of every tensor are in truth.json.
files_of() {
  find "$@" -type f ! -name truth.safetensors ! -name losses.jsonl | sort
}

cd "$source"
archive=$root/fixtures/corpus.tar.xz
# lp=2, pb=2, lc=0: most bytes are fp32, which compress best with contexts four bytes wide.
files_of "$@" |
  tar --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=u=rw,go=r --no-recursion -cf - -T - |
  xz --lzma2=preset=9e,dict=64MiB,lc=0,lp=2,pb=2 >"$archive"
(cd "$root/fixtures" && sha256sum corpus.tar.xz >corpus.tar.xz.sha256)

for run in "$@"; do
  # One sum a run: over the list of its files' sums.
  sum=$(cd "$run" && files_of . | xargs -d '\n' sha256sum | sha256sum | cut -d' ' -f1)
  printf '| %s | %d | `%s` |\n' "$run" "$(files_of "$run" | wc -l)" "$sum"
done
ls -l "$archive" | awk '{ printf "corpus: %.1f MB\n", $5 / 1e6 }' >&2
