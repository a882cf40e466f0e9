#!/bin/bash
# Checks that public headers include only the standard library, nlohmann/json and each other, that crossrank.hpp includes all of
# them, and that examples include only public headers of crossrank. CMake checks the includes of the layers, see
# lib/cmake/CrossrankLayer.cmake.
# Usage: public_headers.sh SOURCE_TREE
set -euo pipefail
cd "$1"
problems=0
problem() { echo "$1"; problems=$((problems + 1)); }

while IFS=: read -r file line; do
  name=${line#*[<\"]}
  name=${name%[>\"]*}
  case $name in
    crossrank/* | nlohmann/json.hpp | nlohmann/json_fwd.hpp) ;;
    cereal/*) [[ $file == include/crossrank/serialize.hpp ]] || problem "$file includes $name: only serialize.hpp may" ;;
    ATen/* | c10/* | torch/*)
      [[ $file == include/crossrank/torch.hpp || $file == include/crossrank/torch/* ]] || problem "$file includes $name: only torch.hpp and torch/ may" ;;
    mpi.h) [[ $file == include/crossrank/mpi.hpp ]] || problem "$file includes $name: only mpi.hpp may" ;;
    */* | *.h | *.hpp) problem "$file includes $name: public headers include the standard library, nlohmann/json and each other" ;;
  esac
done < <(grep -rE --include='*.hpp' '^#include ' include)

while read -r line; do
  problem "$line: examples include only public headers"
done < <(grep -rE --include='*.hpp' --include='*.cpp' '^#include "(lib|collectives|workspace|tools|tests|bench)/' examples)

# crossrank.hpp includes all public headers, except those for MPI, LibTorch and backends.
list_includes() { sed -n 's/^#include <\(crossrank\/[^>]*\)>.*/\1/p' "include/$1"; }
declare -A included=([crossrank/crossrank.hpp]=1)
waiting=(crossrank/crossrank.hpp)
while [[ ${#waiting[@]} -gt 0 ]]; do
  next=()
  for name in "${waiting[@]}"; do
    [[ -e include/$name ]] || continue
    while read -r name; do
      [[ -z ${included[$name]:-} ]] || continue
      included[$name]=1
      next+=("$name")
    done < <(list_includes "$name")
  done
  waiting=("${next[@]}")
done
if [[ -e include/crossrank/crossrank.hpp ]]; then
  while read -r name; do
    [[ -n ${included[$name]:-} ]] || problem "$name: crossrank.hpp does not include it"
  done < <(cd include && find crossrank -name '*.hpp' -not -path 'crossrank/spi/*' -not -path 'crossrank/torch*' -not -name mpi.hpp | sort)
fi

[[ $problems -eq 0 ]] || { echo "$problems includes that are missing or not allowed"; exit 1; }
