#!/usr/bin/env bash
# Sets up, builds, reshapes a checkpoint and certifies the result.
#
#   ./reshape.sh
#       on a generated checkpoint, in build/demo/: TP=4 PP=4 fp16 without ZeRO becomes
#       TP=2 PP=2 DP=2 with ZeRO-1
#   ./reshape.sh SOURCE DESTINATION --tp 2 --pp 2 --dp 2 --zero 1 [flags of `shardproof reshape`]
#       on yours; reports are written beside DESTINATION unless the flags say otherwise
#
# Exit codes are those of shardproof: 0 certified, 1 refuted, 2 bad input, 3 undecided.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
shardproof=$root/build/shardproof

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  sed -n '2,11s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
  exit 0
fi
if [[ $# -eq 1 || ${1:-} == -* || ${2:-} == -* ]]; then
  echo "usage: ./reshape.sh [SOURCE DESTINATION flags...]   (./reshape.sh --help says more)" >&2
  exit 2
fi

show() {  # prints a command as it can be typed again, then runs it
  printf '\n$'
  printf ' %q' "$@"
  printf '\n'
  "$@"
}

has_flag() {  # has_flag --html "${flags[@]}": also as --html=FILE
  local wanted=$1 flag
  shift
  for flag in "$@"; do
    [[ $flag == "$wanted" || $flag == "$wanted="* ]] && return 0
  done
  return 1
}

# 1 would say "refuted".
"$root/ci/setup.sh" || exit 2
"$root/ci/build.sh" || exit 2

if [[ $# -eq 0 ]]; then
  demo=$root/build/demo
  rm -rf "$demo"
  mkdir -p "$demo"
  source=$demo/tp4-pp4-dp1-zero0-fp16
  destination=$demo/tp2-pp2-dp2-zero1-fp16
  flags=(--tp 2 --pp 2 --dp 2 --zero 1 --qkv-layout per-head-group)
  show "$shardproof" fixture "$source" --tp 4 --pp 4 --dp 1 --zero 0 --dtype fp16
else
  source=$1
  destination=${2%/}
  flags=("${@:3}")
fi

certified=yes
for flag in --dry-run --no-certify --list-targets; do
  ! has_flag "$flag" "${flags[@]}" || certified=no
done
reports=()
if [[ $certified == yes ]]; then
  for report in certificate:certificate.json html:certificate.html junit:junit.xml; do
    has_flag "--${report%%:*}" "${flags[@]}" ||
      reports+=("--${report%%:*}" "$destination.${report#*:}")
  done
fi

code=0
show "$shardproof" reshape "$source" "$destination" "${flags[@]}" "${reports[@]}" || code=$?

echo
case $code in
  0) [[ $certified == no ]] || echo "CERTIFIED: $destination holds the state of $source" ;;
  1) echo "REFUTED: the target does not hold the state of the source; do not resume from it" ;;
  2) echo "nothing was written: the message above says why" ;;
  3) echo "UNDECIDED: something needed was not compared; the report says what" ;;
  *) echo "this is a bug of shardproof (exit code $code)" ;;
esac
for ((i = 1; i < ${#reports[@]}; i += 2)); do
  [[ ! -e ${reports[i]} ]] || echo "report: ${reports[i]}"
done
exit $code
