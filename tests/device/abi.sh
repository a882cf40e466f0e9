#!/bin/bash
# Compares the product's and the emulator's declarations with the vendor's headers. Of the product, driver_declarations.cpp
# and nccl_declarations.cpp compare every enumerator, field and function. Of the emulator, every enumerator and constant has
# the same value, every struct the same size, and every function compiles against the vendor's declaration. The emulated NCCL
# imitates version 2.28: an older header lacks some functions and names, and in another one structs may be longer, so that only
# the offsets of their common fields are compared. The headers may be in different directories. Ends with 77 where cuda.h is not.
# Usage: abi.sh SOURCE_TREE COMPILER [INCLUDE_DIRECTORY...]
set -euo pipefail
tree=$1
compiler=$2
shift 2

# folder_of HEADER MACRO DIRECTORY...: prints the first directory whose HEADER defines MACRO.
folder_of() {
  local header=$1 macro=$2 directory
  shift 2
  for directory in "$@" /usr/local/cuda/include /usr/local/include /usr/include; do
    grep -qs "define $macro" "$directory/$header" && { echo "$directory"; return; }
  done
  return 0
}
cuda=$(folder_of cuda.h CUDA_VERSION "$@")
nccl=$(folder_of nccl.h NCCL_VERSION_CODE "$@")
[[ -n $cuda ]] || { echo "skipped: no vendor header cuda.h"; exit 77; }
includes=()
for directory in "$cuda" "$nccl"; do
  # The compiler searches /usr/include itself. Named here, it would come before the headers of the C++ library.
  [[ -z $directory || $directory == /usr/include ]] || includes+=(-isystem "$directory")
done
nccl_version=0
[[ -z $nccl ]] || nccl_version=$(sed -nE 's/^#define NCCL_VERSION_CODE ([0-9]+).*/\1/p' "$nccl/nccl.h")
oldest_imitated=22800
first_not_imitated=22900
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
emulator=$tree/tests/support/emulated_gpu

# is_known NAME: returns whether the vendor's header has a name of the emulator.
is_known() {
  case $1 in
    ncclFloat8e*) [[ $nccl_version -ge 22400 ]] ;;
    NCCL_SHRINK_*) [[ $nccl_version -ge 22700 ]] ;;
    *) true ;;
  esac
}
# values HEADER FILE: appends an assertion for each "name = value" and each numeric #define of HEADER.
values() {
  local name value
  { grep -oE '\b(CU|nccl)[A-Za-z0-9_]+ = -?[0-9][0-9xA-Fa-f]*' "$1" | sed 's/ = / /'
    sed -nE 's/^#define (CU_[A-Z_]+|NCCL_[A-Z_]+) ([-0-9xA-Fa-f]+)$/\1 \2/p' "$1"; } |
    while read -r name value; do
      if is_known "$name"; then echo "static_assert($name == ($value));"; fi
    done >>"$2"
}
# layout HEADER FILE: appends what a program prints whose statements come from the standard input, in HEADER's layout.
layout() {
  { echo "#include \"$1\""; echo '#include <cstddef>'; echo '#include <cstdio>'; echo 'int main() {'; cat; echo '}'; } >"$work/layout.cpp"
  "$compiler" -std=c++20 -I"$tree" -o "$work/layout" "$work/layout.cpp"
  "$work/layout" >>"$2"
}
# sizes HEADER FILE: appends an assertion of the size of each struct.
sizes() {
  sed -nE 's/^struct ([A-Za-z0-9_]+) \{$/std::printf("static_assert(sizeof(\1) == %zu);\\n", sizeof(\1));/p' "$1" | layout "$1" "$2"
}
# offsets HEADER FILE VENDOR_HEADER: appends an assertion of the offset of each field that VENDOR_HEADER has too.
offsets() {
  local type field
  awk '/^struct [A-Za-z0-9_]+ \{$/ { type = $2 } /^}/ { type = "" }
       type != "" && /;$/ { field = $NF; sub(/[[;].*/, "", field); print type, field }' "$1" |
    while read -r type field; do
      grep -qw "$field" "$3" || continue
      echo "std::printf(\"static_assert(offsetof($type, $field) == %zu);\\n\", offsetof($type, $field));"
    done | layout "$1" "$2"
}
compile() { "$compiler" -std=c++20 -fsyntax-only "${includes[@]}" -I"$tree" "$@"; }
# check_sources FOLDER: compiles the emulator's functions against the vendor's declarations.
check_sources() {
  local source
  for source in "$emulator/$1"/*.cpp; do
    grep -q 'extern "C"' "$source" || continue
    compile -DEMULATED_GPU_VENDOR_HEADERS -DEMULATED_NCCL_VERSION=0 "$source"
  done
}
# check_values FILE: compiles the assertions.
check_values() {
  [[ $(grep -c static_assert "$1") -gt 20 ]]
  compile "$1"
}

driver=$emulator/cuda/cuda_abi.hpp
echo '#include <cuda.h>' >"$work/driver.cpp"
values "$driver" "$work/driver.cpp"
sizes "$driver" "$work/driver.cpp"
check_values "$work/driver.cpp"
check_sources cuda
compile "$tree/tests/device/driver_declarations.cpp"

[[ -n $nccl ]] || { echo "no vendor header nccl.h: only the driver was compared"; exit 0; }
abi=$emulator/nccl/nccl_abi.hpp
printf '#include <cstddef>\n#include <nccl.h>\n' >"$work/nccl.cpp"
values "$abi" "$work/nccl.cpp"
offsets "$abi" "$work/nccl.cpp" "$nccl/nccl.h"
if ((nccl_version >= oldest_imitated && nccl_version < first_not_imitated)); then sizes "$abi" "$work/nccl.cpp"; fi
check_values "$work/nccl.cpp"
if ((nccl_version >= oldest_imitated)); then check_sources nccl; fi
compile "$tree/tests/device/nccl_declarations.cpp"
