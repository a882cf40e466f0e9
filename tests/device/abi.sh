#!/bin/bash
# Compares the product's and the emulator's declarations with the vendor's headers. Of the product, driver_declarations.cpp
# and nccl_declarations.cpp compare every enumerator, field and function. Of the emulator, every enumerator and constant has
# the same value, every struct the same size, and every function compiles against the vendor's declaration. Ends with 77
# where no headers are.
# Usage: abi.sh SOURCE_TREE COMPILER [INCLUDE_DIRECTORY...]
set -euo pipefail
tree=$1
compiler=$2
shift 2
headers=
for directory in "$@" /usr/local/cuda/include /usr/local/include /usr/include; do
  if grep -qs CUDA_VERSION "$directory/cuda.h"; then
    headers=$directory
    break
  fi
done
[[ -n $headers ]] || { echo "skipped: no vendor header cuda.h"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
emulator=$tree/tests/support/emulated_gpu

# values HEADER FILE: appends an assertion for each "name = value" and each numeric #define of HEADER.
values() {
  grep -oE '\b(CU|nccl)[A-Za-z0-9_]+ = -?[0-9][0-9xA-Fa-f]*' "$1" | sed -E 's/(.*) = (.*)/static_assert(\1 == \2);/' >>"$2"
  sed -nE 's/^#define (CU_[A-Z_]+|NCCL_[A-Z_]+) ([-0-9xA-Fa-f]+)$/static_assert(\1 == (\2));/p' "$1" >>"$2"
}
# sizes HEADER FILE VENDOR_HEADER: appends an assertion of the size of each struct, as this compiler lays out ours.
sizes() {
  { echo "#include \"$1\""; echo '#include <cstdio>'; echo 'int main() {'
    sed -nE 's/^struct ([A-Za-z0-9_]+) \{$/std::printf("static_assert(sizeof(\1) == %zu);\\n", sizeof(\1));/p' "$1"
    echo '}'; } >"$work/sizes.cpp"
  "$compiler" -std=c++20 -I"$tree" -o "$work/sizes" "$work/sizes.cpp"
  "$work/sizes" >>"$2"
}
check() {  # check NAME OUR_HEADER VENDOR_HEADER FOLDER
  echo "#include <$3>" >"$work/$1.cpp"
  values "$2" "$work/$1.cpp"
  sizes "$2" "$work/$1.cpp"
  [[ $(grep -c static_assert "$work/$1.cpp") -gt 20 ]]
  "$compiler" -std=c++20 -fsyntax-only -isystem "$headers" "$work/$1.cpp"
  local source
  for source in "$emulator/$4"/*.cpp; do
    grep -q 'extern "C"' "$source" || continue
    "$compiler" -std=c++20 -fsyntax-only -DEMULATED_GPU_VENDOR_HEADERS -DEMULATED_NCCL_VERSION=0 -isystem "$headers" -I"$tree" "$source"
  done
}
check_product() {  # check_product NAME
  "$compiler" -std=c++20 -fsyntax-only -isystem "$headers" -I"$tree" "$tree/tests/device/$1_declarations.cpp"
}
check driver "$emulator/cuda/cuda_abi.hpp" cuda.h cuda
check_product driver
if [[ -e $headers/nccl.h ]]; then
  check nccl "$emulator/nccl/nccl_abi.hpp" nccl.h nccl
  check_product nccl
else
  echo "no vendor header nccl.h: only the driver was compared"
fi
