#!/bin/bash
# Checks the generator of the list of crash points on a small tree. Usage: crash_points.sh SOURCE_TREE
set -euo pipefail
script=$1/lib/cmake/list_crash_points.cmake
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
mkdir -p "$tree/lib/a" "$tree/collectives" "$tree/workspace"
cat >"$tree/lib/a/a.cpp" <<'SOURCE'
#define CROSSRANK_CRASH_POINT(name)
/// CROSSRANK_CRASH_POINT("only.a.comment")
void f() { CROSSRANK_CRASH_POINT("b.second"); CROSSRANK_CRASH_POINT("a.first"); }
SOURCE
echo 'void g() { CROSSRANK_CRASH_POINT("a.first"); }' >"$tree/workspace/g.hpp"
list() { cmake -DSOURCE_DIR="$tree" -DOUTPUT="$tree/out.hpp" -P "$script"; }

list
names=$(grep -oE '"[^"]+"' "$tree/out.hpp" | tr -d '"' | tr '\n' ' ')
[[ $names == "a.first b.second " ]] || { echo "wrong list: $names"; exit 1; }
grep -q 'std::array<std::string_view, 2>' "$tree/out.hpp" || { echo "wrong size"; exit 1; }

touch -d '2001-01-01' "$tree/out.hpp"
list
[[ $(stat -c %Y "$tree/out.hpp") -lt 1000000000 ]] || { echo "an unchanged list was written again"; exit 1; }

echo 'void h(char const* name) { CROSSRANK_CRASH_POINT(name); }' >"$tree/collectives/h.cpp"
if list 2>/dev/null; then echo "a name that is not a literal was accepted"; exit 1; fi
