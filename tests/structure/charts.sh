#!/bin/bash
# Checks that bench/run plot draws the charts of docs/charts from the results in the same folder. Usage: charts.sh SOURCE_TREE
set -euo pipefail
cd "$1"
command -v python3 >/dev/null || { echo "skipped: python3 is not installed"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export PYTHONDONTWRITEBYTECODE=1
for results in docs/charts/*.json; do
  python3 bench/plot/plot.py "$results" --out "$folder"
done
for chart in docs/charts/*.svg; do
  cmp "$chart" "$folder/${chart##*/}" || { echo "$chart is out of date. Run: bench/run plot ${results} --out docs/charts"; exit 1; }
done
