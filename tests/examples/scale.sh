#!/bin/bash
# Runs the scripts of examples/scale as their schedulers would, on this machine, and compares the result with a plain merge.
# Usage: scale.sh slurm|kubernetes|ray COMMAND SOURCE_TREE [PYTHON]
set -euo pipefail
scheduler=$1 command=$2 source=$3 python=${4:-python3}
shards=$source/tests/data/quantized/fp8/tp2 scripts=$source/examples/scale
parts=4 size=(--max-shard-size 30KB)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/bin"
ln -s "$command" "$folder/bin/crossrank"
export PATH=$folder/bin:$PATH PLAN=$folder/plan.json TMPDIR=$folder
unset RANK WORLD_SIZE

finish_and_compare() {
  crossrank consolidate "$shards" "$folder/plain" "${size[@]}" --progress none >/dev/null
  diff -r "$folder/plain" "$folder/model" || { echo "the result differs from a plain merge"; exit 1; }
  [[ $(find "$folder/plain" -name '*.safetensors' | wc -l) -gt $parts ]] || { echo "too few files for $parts parts"; exit 1; }
}

run_slurm() {
  local first task
  # The array in the script's comment counts from 0. Users also write arrays that count from 1.
  for first in 0 1; do
    rm -rf "$folder/model" "$folder/plain"
    crossrank plan "$shards" "$folder/model" --parts $parts --output "$PLAN" "${size[@]}" >/dev/null
    export SLURM_ARRAY_TASK_COUNT=$parts SLURM_ARRAY_TASK_MIN=$first SLURM_ARRAY_TASK_MAX=$((first + parts - 1))
    for ((task = first; task < first + parts - 1; ++task)); do
      SLURM_ARRAY_TASK_ID=$task bash "$scripts/consolidate.sbatch"
    done
    # The last part is missing and runs as an array of its own, with the command of the script's comment.
    export SLURM_ARRAY_TASK_ID=$((parts - 1)) SLURM_ARRAY_TASK_COUNT=1 SLURM_ARRAY_TASK_MIN=$((parts - 1))
    bash "$scripts/consolidate.sbatch" 2>/dev/null && { echo "an array of another size ran"; exit 1; }
    eval "$(sed -n "s/^#.*--array=1,3 --wrap '\(.*\)'.*$/\1/p" "$scripts/consolidate.sbatch")"
    bash "$scripts/consolidate.sbatch" --part $((parts - 1))
    eval "$(sed -n "s/^#.*--wrap '\(.*\)'$/\1/p" "$scripts/consolidate.sbatch")"
    finish_and_compare
  done
}

# Prints the words of the n-th command of the Job's file, one per line.
words_of_command() { sed -n 's/^ *command: \[\(.*\)\]$/\1/p' "$scripts/consolidate.yaml" | sed -n "$1p" | grep -oE '"[^"]*"' | tr -d '"'; }

run_kubernetes() {
  local index part finish
  crossrank plan "$shards" "$folder/model" --parts $parts --output "$PLAN" "${size[@]}" >/dev/null
  mapfile -t part < <(words_of_command 1 | sed "s|^/shared|$folder|")
  mapfile -t finish < <(words_of_command 2 | sed "s|^/shared|$folder|")
  [[ ${#part[@]} -gt 3 && ${#finish[@]} -gt 3 ]] || { echo "the Job has no commands"; exit 1; }
  for ((index = parts - 1; index >= 0; --index)); do JOB_COMPLETION_INDEX=$index "${part[@]}"; done
  "${finish[@]}"
  finish_and_compare
}

run_ray() {
  "$python" -c 'import ray' 2>/dev/null || { echo "SKIPPED: $python has no ray"; exit 77; }
  # As in a cluster with four workers.
  HOME=$folder RAY_TMPDIR=$folder RAY_USAGE_STATS_ENABLED=0 timeout 150 "$python" - "$scripts/consolidate_ray.py" "$shards" "$folder/model" "$PLAN" $parts "${size[@]}" <<'PYTHON'
import runpy
import sys

import ray

ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
ray.shutdown()
PYTHON
  finish_and_compare
}

"run_$scheduler"
echo "$scheduler: the result is the one of a plain merge"
