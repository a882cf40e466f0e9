# shellcheck shell=bash
# Sourced by bench/run: the paths `headers`, commands that read only headers, and `hosts`, a merge in parts.
# Requires these variables and functions of that script: programs, crossrank, scratch, place, quick, launch, say, finish.

# Times one command. Usage: timed FILE PATH WHO VARIANT NUMBER COMMAND...
timed() {
  local file=$1 path=$2 who=$3 variant=$4 number=$5 peer=ours
  shift 5
  [[ $who == crossrank ]] || peer=$who
  launch "$peer" "$file" 900 "$programs/bench_timed" --out "$file" --path "$path" --who "$who" --variant "$variant" --ranks 1 --reads 0 \
    --bytes "$number" --warm "$set" -- "$@"
}

# Commands on models of 10^3, 10^4, 10^5 and 150,000 tensors, with 75 tensors in a file. Usage: headers_round NUMBER
headers_round() {
  local tensors set at out=$place/headers-out
  for tensors in 1000 10000 100000 150000; do
    set=$place/headers-$tensors
    [[ -d $set ]] || "$programs/bench_make_headers" "$tensors" 75 "$set" || finish 7 "the headers cannot be made"
    at=$scratch/headers-$1-$tensors
    rm -rf "$out"
    timed "$at-plan" headers crossrank plan "$tensors" "$crossrank" plan "$set" "$out" --parts 16 --output "$out.json" \
      --max-shard-size 10MB --progress none
    # One part after the plan: its time must not grow with the number of files that other parts need.
    timed "$at-part" headers crossrank part "$tensors" "$crossrank" consolidate --plan "$out.json" --part 0/16 --progress none
    timed "$at-verify" headers crossrank verify "$tensors" "$crossrank" verify "$set" --progress none
    timed "$at-inspect" headers crossrank inspect "$tensors" "$crossrank" inspect "$set"
    timed "$at-split" headers crossrank split "$tensors" "$crossrank" split "$set" "$out.split" --tp 2 --dry-run --progress none
  done
  rm -rf "$out" "$out.json"
}

# Runs the parts of a merge at the same time, each on a "host" with a connection of its own. Usage: merge_on HOSTS
merge_on() {
  local part pids=()
  rm -rf "$set-out"
  "$crossrank" plan "$set/shards" "$set-out" --parts "$1" --output "$set.json" --max-shard-size 16MB --progress none >/dev/null
  for ((part = 0; part < $1; ++part)); do
    LD_PRELOAD=$programs/bench_rate_limit.so "$crossrank" consolidate --plan "$set.json" --part "$part/$1" --progress none >/dev/null &
    pids+=($!)
  done
  for part in "${pids[@]}"; do wait "$part" || return 1; done
  "$crossrank" consolidate --plan "$set.json" --finish --progress none >/dev/null
}

# A merge on one host and on two. Each host has 1 Gbit/s to the storage, which is less than a disk writes, because both
# share the disk of this machine. Usage: hosts_round NUMBER
hosts_round() {
  local bytes=$(((quick ? 1 : 2) << 30)) set=$place/hosts
  export BENCH_BYTES_PER_SECOND=125000000
  [[ -d $set ]] || "$programs/bench_make_shards" bf16 "$bytes" 4 "$set" >/dev/null || finish 7 "the shards cannot be made"
  export set crossrank programs
  export -f merge_on
  timed "$scratch/hosts-$1-one" hosts one_host "1 Gbit/s a host" "$bytes" bash -c 'merge_on 1'
  timed "$scratch/hosts-$1-two" hosts crossrank "1 Gbit/s a host" "$bytes" bash -c 'merge_on 2'
  "$programs/bench_check_model" "$set-out" "$set/expected.json" || finish 7 "a merge in parts is wrong"
  rm -rf "$set-out"
  unset BENCH_BYTES_PER_SECOND
}
