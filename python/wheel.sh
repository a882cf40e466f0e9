#!/bin/bash
# Builds a wheel with the libraries, the command and the plugins of a build folder.
# Usage: wheel.sh PYTHON BUILD_FOLDER OUT   PYTHON has scikit-build-core and nanobind. Prints the wheel's path.
set -euo pipefail
source_tree=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd -P)
python=$1 build=$(readlink -f "$2") out=$3
mkdir -p "$out"
# The module gets the compiler of the libraries: Clang relies on callers that extend narrow arguments, and GCC with -Os does not.
compiler=$(sed -n 's/^CMAKE_CXX_COMPILER:[A-Z]*=//p' "$build/CMakeCache.txt")
PATH=$(dirname "$python"):$PATH "$python" -m pip wheel -q --no-deps --no-build-isolation -w "$out" "$source_tree" \
  --config-settings=cmake.source-dir=python --config-settings=cmake.define.crossrank_DIR="$build" \
  --config-settings=cmake.define.CMAKE_CXX_COMPILER="$compiler" \
  --config-settings=build-dir="$build/python-wheel" >"$out/log" 2>&1 || { tail -n 40 "$out/log" >&2; exit 1; }
ls "$out"/crossrank-*.whl
