#!/usr/bin/env bash
# Unpacks the real checkpoints that tests read: fixtures/corpus.tar.xz -> fixtures/corpus/ (not
# under version control), after comparing the archive's sha256. fixtures/CORPUS.md lists them.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
archive=$root/fixtures/corpus.tar.xz
folder=$root/fixtures/corpus

if [[ -L $folder ]]; then
  echo "corpus: fixtures/corpus is a link of yours; left as it is"
  exit 0
fi
expected=$(cut -d' ' -f1 "$archive.sha256")
if [[ -e $folder/.unpacked && $(cat "$folder/.unpacked") == "$expected" ]]; then
  echo "corpus: fixtures/corpus is there"
  exit 0
fi
(cd "$root/fixtures" && sha256sum --check --quiet corpus.tar.xz.sha256) || {
  echo "corpus: $archive is damaged; restore it: git checkout -- fixtures" >&2
  exit 2
}
# Into a sibling first: an interrupted run leaves no half corpus under the final name.
partial=$root/fixtures/corpus.partial
rm -rf "$partial" "$folder"
mkdir "$partial"
tar -xJf "$archive" -C "$partial"
printf '%s\n' "$expected" >"$partial/.unpacked"
mv "$partial" "$folder"
echo "corpus: unpacked $(find "$folder" -name truth.json | wc -l) runs into fixtures/corpus"
