#!/bin/bash
# Checks that public headers include only the standard library, nlohmann/json and each other, and that examples include only
# public headers of crossrank. CMake checks the includes of the layers, see lib/cmake/CrossrankLayer.cmake.
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

[[ $problems -eq 0 ]] || { echo "$problems includes that are not allowed"; exit 1; }
