#!/bin/bash
# Checks that the version of include/crossrank/version.hpp is the newest entry of the change log, and that no other
# build file or document repeats it. Usage: version.sh SOURCE_TREE
set -euo pipefail
cd "$1"
version=$(sed -nE 's/^#define CROSSRANK_VERSION_(MAJOR|MINOR|PATCH) ([0-9]+)$/\2/p' include/crossrank/version.hpp | paste -sd .)
[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || { echo "version.hpp has the version $version"; exit 1; }
newest=$(grep -m1 -oE '^## [0-9]+\.[0-9]+\.[0-9]+' CHANGELOG.md | cut -d ' ' -f 2)
[[ $newest == "$version" ]] || { echo "version.hpp has the version $version, but CHANGELOG.md begins with $newest"; exit 1; }
if grep -rnE "VERSION \"?${version//./\\.}" CMakeLists.txt lib/cmake docs; then
  echo "these lines repeat the version: take it from PROJECT_VERSION"
  exit 1
fi
