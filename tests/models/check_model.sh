#!/usr/bin/env bash
# Checks one Promela model exhaustively: check_model.sh MODEL.pml [BROKEN_SWITCH]
# Without a switch the search must complete and find no error. With a switch it must find an error; otherwise the model
# would accept anything. Exit status: 0 if so, 1 if not, 77 if a tool is missing.
set -euo pipefail

model=$1
switch=${2:-}

compiler=${CC:-cc}
for tool in spin "$compiler"; do
  if ! command -v "$tool" > /dev/null; then
    echo "skipped: $tool is not installed"
    exit 77
  fi
done

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cp "$model" "$folder/model.pml"
cd "$folder"

spin ${switch:+"-D$switch"} -a model.pml
# A search that ends at its first error does not need an optimized checker.
optimize=${switch:+-O0}
"$compiler" "${optimize:--O2}" -w -DSAFETY -DMEMLIM=3000 -o search pan.c
status=0
./search -m100000 -w22 > report.txt 2>&1 || status=$?
grep -E 'pan:|errors:|states, stored|elapsed' report.txt || true

if [[ $status -ne 0 ]] || grep -qE 'max search depth too small|out of memory|aborted' report.txt; then
  echo "the search did not complete (status $status)"
  exit 1
fi
errors=$(sed -n 's/.*errors: \([0-9]*\).*/\1/p' report.txt)
if [[ -z $switch ]]; then
  if [[ $errors != 0 ]] || grep -q 'Search not completed' report.txt; then
    echo "the model does not hold"
    exit 1
  fi
  echo "holds in every reachable state"
else
  if [[ ${errors:-0} -eq 0 ]] || ! grep -qE 'assertion violated|invalid end state' report.txt; then
    echo "the search did not find $switch, so this model proves nothing"
    exit 1
  fi
  echo "$switch was found"
fi
