#!/bin/bash
# Installs the build into a folder of its own and builds a program against that copy, as its users do.
# Usage: consumer.sh install|cmake|pkg-config|moved   with BUILD, PROJECT, PREFIX, COMPILER and FLAGS in the environment
set -euo pipefail

runs() { # PROGRAM: it says what it joined, with the installed library
  local said
  said=$("$@")
  [[ $said == "crossrank "*" joined 32 bytes" ]] || { echo "it said: $said"; exit 1; }
}

build_with_pkg_config() { # PREFIX
  local config folder flags
  config=$(find "$1" -name crossrank.pc)
  [[ -n $config ]] || { echo "no crossrank.pc below $1"; exit 1; }
  export PKG_CONFIG_PATH=${config%/*}
  folder=$(mktemp -d "$1-pc.XXXXXX")
  read -ra flags <<<"$FLAGS $(pkg-config --cflags --libs crossrank)"
  "$COMPILER" -std=c++20 "$PROJECT/main.cpp" -o "$folder/consumer" "${flags[@]}"
  runs env LD_LIBRARY_PATH="$(pkg-config --variable=libdir crossrank)" "$folder/consumer"
  rm -rf "$folder"
}

case $1 in
  install)
    rm -rf "$PREFIX" "$PREFIX"-*
    cmake --install "$BUILD" --prefix "$PREFIX"
    "$PREFIX/bin/crossrank" --version
    for part in include/crossrank/error.hpp bin/crossrank; do
      [[ -e $PREFIX/$part ]] || { echo "$part was not installed"; exit 1; }
    done
    ;;
  cmake)
    cmake -S "$PROJECT" -B "$PREFIX-cmake" -G Ninja --fresh -DCMAKE_PREFIX_PATH="$PREFIX" -DCMAKE_CXX_COMPILER="$COMPILER" -DCMAKE_CXX_FLAGS="$FLAGS"
    cmake --build "$PREFIX-cmake"
    runs "$PREFIX-cmake/consumer"
    ;;
  pkg-config) build_with_pkg_config "$PREFIX" ;;
  moved)
    rm -rf "$PREFIX-moved"
    cp -a "$PREFIX" "$PREFIX-moved"
    build_with_pkg_config "$PREFIX-moved"
    rm -rf "$PREFIX-moved"
    ;;
  *) echo "unknown step $1"; exit 2 ;;
esac
