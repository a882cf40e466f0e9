# shellcheck shell=bash
# Sourced by bench/run: the path `export`, weights in the memory of four ranks that become one checkpoint.
# Requires these variables and functions of that script: programs, crossrank, root, scratch, place, quick, export_gib,
# python, launch, say, finish, has_space.

export_ranks=4

# Writes the same bytes with dd, from memory with our library, and with PyTorch. Usage: export_round NUMBER
export_round() {
  local bytes=$((export_gib << 30)) set=$place/export at=$scratch/export-$1
  if [[ ! -d $set ]]; then
    # Shards, a copy of them, a result, and the shards that PyTorch writes.
    has_space "$place" $((bytes * 9 / 2)) || { say "skipped: export needs four times $export_gib GiB in $place"; return 0; }
    "$programs/bench_make_shards" bf16 "$bytes" "$export_ranks" "$set" >/dev/null || finish 7 "the shards cannot be made"
    mkdir "$set/whole"
    cat "$set"/shards/*.safetensors >"$set/whole/bytes"
  fi
  launch dd "$at-dd" 900 "$programs/bench_timed" --out "$at-dd" --path export --who dd --variant bf16 --ranks "$export_ranks" --reads 0 \
    --bytes "$bytes" --warm "$set/whole" -- dd if="$set/whole/bytes" of="$set/written" bs=8M conv=fsync status=none
  rm -rf "$set/written" "$set/out"
  launch ours "$at-ours" 900 "$crossrank" run -n "$export_ranks" --no-prefix -- "$programs/bench_export_memory" "$at-ours" "$set/shards" \
    "$set/out" "$bytes"
  "$programs/bench_check_model" "$set/out" "$set/expected.json" || finish 7 "an export from memory is wrong"
  rm -rf "$set/out"
  launch ours "$at-names" 300 "$crossrank" run -n "$export_ranks" --no-prefix -- "$programs/bench_export_names" "$at-names" 100000 "$set/out"
  rm -rf "$set/out"
  [[ -n $python ]] || return 0
  launch dcp_save_and_consolidate "$at-dcp" 1800 "$python" "$root/bench/peers/dcp.py" export "$set/shards" "$set/out" "$at-dcp" "$bytes"
  [[ ! -e $set/out ]] || "$programs/bench_check_model" "$set/out" "$set/expected.json" || say "PyTorch's result differs"
  rm -rf "$set/out"
}
