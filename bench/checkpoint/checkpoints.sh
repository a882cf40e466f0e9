# shellcheck shell=bash
# Sourced by bench/run: the paths `consolidate` and `files`, whole commands on files that the benchmark creates itself.
# Requires these variables and functions of that script: programs, crossrank, scratch, quick, quick_flag, python,
# launch, say.

# The numbers of processes of a merge, and the kinds of model.
process_counts=(1 2)
model_kinds=(bf16 nvfp4)

# Returns whether DIR has space for BYTES.
has_space() { (($(df --output=avail -B1 "$1" | tail -n 1) > $2)); }

# Times one command and checks that it merged the shards. Usage: contestant WHO VARIANT PROCESSES CACHE COMMAND...
contestant() {
  local who=$1 variant=$2 processes=$3 cache=$4 reads=0 state=(--warm "$set/$source_folder") peer=$1
  shift 4
  if [[ $who == verified || $who == unverified ]]; then peer=ours; fi
  [[ $who != verified ]] || reads=1
  [[ $cache == warm ]] || state=(--cold "$set/$source_folder")
  ((++turn))
  local file=$at-$turn
  rm -rf "$set/out"
  launch "$peer" "$file" 1800 "$programs/bench_timed" --out "$file" --path consolidate --who "${peer/ours/crossrank}" --variant "$variant, $cache" \
    --ranks "$processes" --reads "$reads" --bytes "$bytes" "${state[@]}" -- "$@"
  [[ -e $set/out ]] || return 0
  [[ $peer == cp ]] || "$programs/bench_check_model" "$set/out" "$set/expected.json" || finish 7 "a result of $who is wrong: $*"
  rm -rf "$set/out"
}

# Merges a kind of model once with every contestant, each time directly after the copy. Usage: merges KIND
merges() {
  local kind=$1 cache processes copy ours
  copy="mkdir '$set/out' && cp --reflink=never '$set'/shards/* '$set/out' && sync '$set'/out/* '$set/out'"
  source_folder=shards
  for cache in warm cold; do
    for processes in "${process_counts[@]}"; do
      ours=("$crossrank" consolidate "$set/shards" "$set/out" -n "$processes" --progress none)
      contestant cp "$kind" "$processes" "$cache" bash -c "$copy"
      contestant verified "$kind" "$processes" "$cache" "${ours[@]}"
      contestant unverified "$kind" "$processes" "$cache" "${ours[@]}" --no-read-back
    done
  done
  [[ -n $python ]] || return 0
  contestant python_merge "$kind" 1 warm "$python" "$root/bench/peers/merge_shards.py" "$set/shards" "$set/out"
  [[ $kind == bf16 ]] || return 0
  if [[ ! -d $set/dcp ]]; then
    "$python" "$root/bench/peers/dcp.py" write "$set/shards" "$set/dcp" >"$scratch/log" 2>&1 || {
      say "skipped: PyTorch's distributed checkpoint ($(tail -n 1 "$scratch/log"))"
      return 0
    }
  fi
  source_folder=dcp
  contestant dcp_to_torch_save dcp 1 warm "$python" "$root/bench/peers/dcp.py" merge "$set/dcp" "$set/out/model.pt"
  contestant verified dcp 1 warm "$crossrank" convert "$set/dcp" "$set/out" --to torch --single-file --progress none
}

# Usage: consolidate_round NUMBER
consolidate_round() {
  local size kind set bytes at turn=0 source_folder
  for size in $model_gib; do
    for kind in "${model_kinds[@]}"; do
      set=$place/$kind-$size
      at=$scratch/consolidate-$1-$kind-$size
      if [[ ! -d $set ]]; then
        # Space for the shards, a result, a distributed checkpoint, and some reserve.
        if ! has_space "$place" $((size * 4 << 30)); then
          say "skipped: $size GiB needs four times as much space in $place"
          continue
        fi
        say "creating $size GiB of $kind in 4 shards in $set"
        "$programs/bench_make_shards" "$kind" $((size << 30)) 4 "$set" >/dev/null || finish 7 "the shards cannot be made"
      fi
      bytes=$((size << 30))
      merges "$kind"
    done
  done
}

# Usage: files_round NUMBER
files_round() {
  local at=$scratch/files-$1 bytes=$(((quick ? 64 : 256) << 20)) folder=$place/files
  mkdir -p "$folder"
  if [[ -n $python && ! -d $folder/torch ]]; then
    "$python" "$root/bench/peers/torch_file.py" write "$folder/torch" "$bytes" || finish 7 "the torch archive cannot be written"
  fi
  launch ours "$at-ours" 600 "$programs/bench_files" --out "$at-ours" "${quick_flag[@]}" "$folder"
  [[ -z $python ]] || launch torch_load "$at-torch" 300 "$python" "$root/bench/peers/torch_file.py" read "$folder/torch" "$at-torch" "$quick"
}
