#!/bin/bash
# Checks that the command under mpirun merges, splits and merges again to the same bytes as one process.
# Usage: mpi_command.sh RANKS COMMAND TEST_DATA
set -euo pipefail
ranks=$1 command=$2 data=$3/quantized
command -v mpirun >/dev/null || { echo "SKIPPED: mpirun is not installed"; exit 77; }
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_btl_base_warn_component_unused=0
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/tmp"
export TMPDIR=$folder/tmp
launch=(timeout -k 5 1000 mpirun --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 -n "$ranks" "$command")

compared=0
for format in "$data"/*/; do
  name=$(basename "$format")
  [[ -d $format/tp2 ]] || continue
  "$command" consolidate "$format/tp2" "$folder/$name.one" --max-shard-size 100KB --progress none >/dev/null
  "${launch[@]}" consolidate "$format/tp2" "$folder/$name.many" --max-shard-size 100KB --json >"$folder/answer.json"
  diff -r "$folder/$name.one" "$folder/$name.many" || { echo "$name: the files of $ranks ranks differ from those of one"; exit 1; }
  [[ $(wc -l <"$folder/answer.json") -eq 1 ]] && grep -q '"ok":true' "$folder/answer.json" ||
    { echo "$name: expected exactly one answer"; cat "$folder/answer.json"; exit 1; }
  "${launch[@]}" split "$folder/$name.many" "$folder/$name.sharded" --tp 2 >/dev/null 2>&1
  "${launch[@]}" consolidate "$folder/$name.sharded" "$folder/$name.again" --max-shard-size 100KB >/dev/null 2>&1
  for file in "$folder/$name.one"/*.safetensors; do
    cmp "$file" "$folder/$name.again/$(basename "$file")" || { echo "$name: differs after split and merge"; exit 1; }
  done
  compared=$((compared + 1))
done
((compared >= 3)) || { echo "found only $compared sets in $data"; exit 1; }

# Every rank fails with the same error, which is printed once.
mkdir "$folder/lone"
cp "$data/fp8/tp2/config.json" "$data/fp8/tp2/rank1.safetensors" "$folder/lone"
status=0
"${launch[@]}" consolidate "$folder/lone" "$folder/none" >"$folder/out" 2>"$folder/err" || status=$?
((status == 1)) || { echo "a missing rank gave exit code $status"; cat "$folder/err"; exit 1; }
(($(grep -c '^crossrank consolidate: ' "$folder/err") == 1)) || { echo "the error was not printed exactly once"; cat "$folder/err"; exit 1; }
[[ ! -e $folder/none ]] || { echo "the failed command left files"; exit 1; }
