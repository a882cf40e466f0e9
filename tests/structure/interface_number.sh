#!/bin/bash
# Checks that the number of the backend interface changes with its headers. Usage: interface_number.sh SOURCE_TREE CMAKE
# Builds a small project that writes the number of a copied tree of headers.
set -euo pipefail
source_tree=$1
cmake=$2
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
cp -r "$source_tree/include" "$tree/include"
cat >"$tree/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.25)
project(interface LANGUAGES NONE)
include("$source_tree/lib/cmake/CrossrankInterface.cmake")
crossrank_write_interface_number(\${PROJECT_SOURCE_DIR}/include \${PROJECT_BINARY_DIR}/interface.hpp)
add_custom_target(nothing ALL)
END
"$cmake" -S "$tree" -B "$tree/build" -G Ninja >"$tree/log"

number() {
  "$cmake" --build "$tree/build" >"$tree/log" || { cat "$tree/log" >&2; return 1; }
  sed -n 's/^#define CROSSRANK_SPI_INTERFACE "\([0-9a-f]\{16\}\)"$/\1/p' "$tree/build/interface.hpp"
}
before=$(number)
[[ -n $before ]] || { echo "no number was written"; exit 1; }
change() { # same|other DESCRIPTION HEADER
  local now
  echo "// changed" >>"$tree/include/crossrank/$3"
  # Time stamps may be coarse: the change is clearly newer than the last build.
  touch -d "@$(($(date +%s) + 2))" "$tree/include/crossrank/$3"
  now=$(number)
  if [[ $1 == same && $now != "$before" || $1 == other && $now == "$before" ]]; then
    echo "$2 changed: the number was $before and is $now"
    exit 1
  fi
  before=$now
}
change same "a header that the interface does not include" checkpoint.hpp
change other "a header of the interface" spi/transport.hpp
change other "a header that the interface includes" tensor/dtype.hpp
change other "a header that an included header includes" collective/rank_span.hpp
change other "a header that is new" spi/new_header.hpp
