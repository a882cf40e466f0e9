#!/bin/bash
# Compiles every public header by itself. Usage: headers_alone.sh SOURCE_TREE COMPILER
set -euo pipefail
cd "$1/include"
export compiler=$2
check() {
  printf '#include <%s>\n#include <%s>\nint main() {}\n' "$1" "$1" |
    "$compiler" -std=c++20 -fsyntax-only -Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Werror -I. -x c++ - ||
    { echo "$1 does not compile alone"; exit 1; }
}
export -f check
find crossrank -name '*.hpp' -print0 | xargs -0 -n 1 -P "$(nproc)" bash -c 'check "$0"'
