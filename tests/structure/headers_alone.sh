#!/bin/bash
# Compiles every public header by itself. Usage: headers_alone.sh SOURCE_TREE COMPILER [GENERATED_HEADERS [LIBTORCH_HEADERS...]]
# Compiles mpi.hpp, which needs the headers of MPI, only if there is an mpicc that names their folder,
# and torch.hpp and torch/ only if the folders of LibTorch's headers are given. Prints the headers that it does not compile.
set -euo pipefail
cd "$1/include"
export compiler=$2
export generated=${3:-}
native=$(mpicc --showme:incdirs 2>/dev/null || true)
export native
export libtorch="${*:4}"
check() {
  local flags=(-I.) folder
  if [[ -n $generated ]]; then flags+=(-I "$generated"); fi
  for folder in $native; do flags+=(-isystem "$folder"); done
  if [[ $1 == crossrank/mpi.hpp && -z $native ]]; then echo "not compiled without MPI: $1"; return 0; fi
  if [[ $1 == crossrank/torch* ]]; then
    if [[ -z $libtorch ]]; then echo "not compiled without LibTorch: $1"; return 0; fi
    for folder in $libtorch; do flags+=(-isystem "$folder"); done
  fi
  printf '#include <%s>\n#include <%s>\nint main() {}\n' "$1" "$1" |
    "$compiler" -std=c++20 -fsyntax-only -Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Werror "${flags[@]}" -x c++ - ||
    { echo "$1 does not compile alone"; exit 1; }
}
export -f check
find crossrank -name '*.hpp' -print0 | xargs -0 -n 1 -P "$(nproc)" bash -c 'check "$0"'
