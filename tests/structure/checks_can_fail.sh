#!/bin/bash
# Checks that each check in this folder fails on a tree that breaks its rule. Usage: checks_can_fail.sh SOURCE_TREE COMPILER
set -euo pipefail
checks=$1/tests/structure
compiler=$2
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT

fresh() {
  rm -rf "${tree:?}"/*
  mkdir -p "$tree"/{include/crossrank,lib/{core,node,platform},collectives/{fake,shm},transforms,workspace,tools,examples,bench}
  printf '#pragma once\n#include <string>\n' >"$tree/include/crossrank/error.hpp"
  echo '#include <crossrank/error.hpp>' >"$tree/lib/core/error.cpp"
  echo 'Setting{"CROSSRANK_TIMEOUT"}' >"$tree/lib/core/settings.cpp"
  mkdir -p "$tree"/{docs,tests}
  printf '# A library\nSee [its parts](docs/PARTS.md#the-first-part).\n' >"$tree/README.md"
  printf '# Parts\n\n## The first part\n' >"$tree/docs/PARTS.md"
}
# expect VERDICT DESCRIPTION COMMAND...: runs the command on the tree, which must "pass" or "fail".
expect() {
  local verdict=$1 what=$2 got=pass
  shift 2
  "$@" >"$tree.log" 2>&1 || got=fail
  if [[ $got != "$verdict" ]]; then
    echo "$what: expected $verdict, got $got"
    cat "$tree.log"
    exit 1
  fi
  rm -f "$tree.log"
}
broken() { # DESCRIPTION FILE TEXT CHECK...
  local what=$1 file=$2 text=$3
  shift 3
  fresh
  printf '%s\n' "$text" >"$tree/$file"
  expect fail "$what" "$@"
}

fresh
expect pass "a clean tree" "$checks/public_headers.sh" "$tree"
expect pass "a clean tree" "$checks/waiting.sh" "$tree"
expect pass "a clean tree" "$checks/words.sh" "$tree"
expect pass "a clean tree" "$checks/retired_words.sh" "$tree"
expect pass "a clean tree" "$checks/settings.sh" "$tree"
expect pass "a clean tree" "$checks/documents.sh" "$tree"
expect pass "a clean tree" "$checks/options.sh" "$tree"
expect pass "a clean tree" "$checks/headers_alone.sh" "$tree" "$compiler"
broken "an example with an internal header" examples/a.cpp '#include "lib/core/shape.hpp"' "$checks/public_headers.sh" "$tree"
broken "a public header with Boost" include/crossrank/error.hpp '#include <boost/version.hpp>' "$checks/public_headers.sh" "$tree"
broken "a public header with MPI" include/crossrank/error.hpp '#include <mpi.h>' "$checks/public_headers.sh" "$tree"
broken "a public header with LibTorch" include/crossrank/error.hpp '#include <torch/version.h>' "$checks/public_headers.sh" "$tree"
broken "a public header with cereal" include/crossrank/error.hpp '#include <cereal/cereal.hpp>' "$checks/public_headers.sh" "$tree"
broken "an incomplete crossrank.hpp" include/crossrank/crossrank.hpp '#include <crossrank/version.hpp>' "$checks/public_headers.sh" "$tree"
broken "a public header with an internal header" include/crossrank/error.hpp '#include "lib/core/shape.hpp"' "$checks/public_headers.sh" "$tree"
broken "a sleep in the product" lib/node/a.cpp 'void f() { std::this_thread::sleep_for(1s); }' "$checks/waiting.sh" "$tree"
broken "a variable outside the table" lib/node/a.cpp 'auto x = std::getenv("CROSSRANK_SECRET");' "$checks/settings.sh" "$tree"
broken "advice about an unknown setting" lib/node/a.cpp 'auto x = "raise CROSSRANK_ARENA";' "$checks/settings.sh" "$tree"
broken "advice with a flag" workspace/a.cpp 'auto x = "give --tp";' "$checks/options.sh" "$tree"
broken "advice that begins with a flag" workspace/a.cpp 'auto x = "--force replaces it";' "$checks/options.sh" "$tree"
broken "a link to a missing file" README.md 'See [its parts](docs/NOTHING.md).' "$checks/documents.sh" "$tree"
broken "a link to a missing heading" README.md 'See [its parts](docs/PARTS.md#the-second-part).' "$checks/documents.sh" "$tree"
broken "a README that is too long" README.md "$(seq 121)" "$checks/documents.sh" "$tree"
broken "a test that does not exist" docs/RELIABILITY.md 'Tested by `Nothing.is_tested`.' "$checks/documents.sh" "$tree"
broken "a test of the Python package that does not exist" docs/RELIABILITY.md "$(printf '## The Python package\n`a/test_nothing.py`')" "$checks/documents.sh" "$tree"
broken "a function of a Python test that does not exist" docs/RELIABILITY.md "$(printf '## The Python package\n`test_nothing`')" "$checks/documents.sh" "$tree"
broken "a guide for contributors with a missing file" CONTRIBUTING.md 'See `lib/core/nothing.cpp`.' "$checks/documents.sh" "$tree"
decision_fails() { # DESCRIPTION PARAGRAPH
  fresh
  mkdir -p "$tree/docs/decisions"
  printf '# A decision\n\n%s\n' "$2" >"$tree/docs/decisions/a.md"
  expect fail "$1" "$checks/documents.sh" "$tree"
}
decision_fails "a decision without its code" 'We decide.'
decision_fails "a decision with a missing file" 'Code: `lib/core/nothing.cpp`.'
decision_fails "a decision with a missing test" 'Code: `lib/core/error.cpp`. Tests: `Nothing`.'
broken "a private folder" lib/node/a.cpp "// see /ho""me/somebody" "$checks/words.sh" "$tree"
broken "a path out of the tree" lib/node/a.cpp "// .""./shared/data" "$checks/words.sh" "$tree"
broken "work that is left for later" lib/node/a.cpp "// TO""DO" "$checks/words.sh" "$tree"
broken "a thing that lacks knowledge" lib/node/a.cpp "// The transport kno""ws no streams." "$checks/words.sh" "$tree"
broken "a retired word" lib/node/a.cpp "// the last mee""ting of the group" "$checks/retired_words.sh" "$tree"
broken "a retired word at the end of an identifier" lib/node/a.cpp "int next_la""st_words = 0;" "$checks/retired_words.sh" "$tree"
broken "a retired word in the middle of an identifier" lib/node/a.cpp "struct SlowPat""rolThread {};" "$checks/retired_words.sh" "$tree"
broken "a retired word in capital letters" lib/node/a.cpp "#define CROSSRANK_CUL""PRITS 1" "$checks/retired_words.sh" "$tree"
broken "a retired word in the name of a file" lib/node/pat''ience.cpp '' "$checks/retired_words.sh" "$tree"
broken "a retired key of a rule" docs/a.md '{"layer": "a", "cu''t": "row"}' "$checks/retired_words.sh" "$tree"
broken "a type with a retired name" lib/node/a.cpp 'class Wi''re {};' "$checks/retired_words.sh" "$tree"
broken "a type with a retired name at its end" lib/node/a.cpp 'class EnqueueTu''rn {};' "$checks/retired_words.sh" "$tree"
broken "a type with a retired name in the plural" lib/node/a.cpp 'class Tu''rns {};' "$checks/retired_words.sh" "$tree"
broken "a retired word beside a name" lib/node/a.cpp "// the model stories260k has a pat""rol" "$checks/retired_words.sh" "$tree"
fresh
echo "// Cut the wire in turn: the model stories260k has a heartbeat and a doorbell." >"$tree/lib/node/a.cpp"
expect pass "ordinary words" "$checks/retired_words.sh" "$tree"
broken "a header that needs another" include/crossrank/error.hpp 'std::string text();' "$checks/headers_alone.sh" "$tree" "$compiler"

vendors() { # FILES: these name a vendor, and the document lists lib/core/a.cpp
  fresh
  printf '## A second vendor\n`lib/core/a.cpp`\n' >"$tree/docs/DEVICES.md"
  for file in "$@"; do echo 'auto kind = Device::Kind::cuda;' >"$tree/$file"; done
}
vendors lib/core/a.cpp
expect pass "a list of the files that name a vendor" "$checks/vendors.sh" "$tree"
vendors lib/core/a.cpp lib/node/a.cpp
expect fail "a file that names a vendor" "$checks/vendors.sh" "$tree"
vendors
expect fail "a list with a file that names no vendor" "$checks/vendors.sh" "$tree"

# Checks of the guide and of the version, each with its own small tree.
chapters() {
  fresh
  mkdir -p "$tree/docs/guide"
  printf 'int main() {\n  run();\n}\n' >"$tree/examples/a.cpp"
  for number in {1..13}; do
    printf '[a](../../examples/a.cpp)\n```cpp\nrun();\n```\n' >"$tree/docs/guide/${number}_a.md"
    echo "[a](${number}_a.md)"
  done >"$tree/docs/guide/README.md"
}
guide_fails() { # DESCRIPTION FILE TEXT
  chapters
  printf '%b' "$3" >"$tree/docs/guide/$2"
  expect fail "$1" "$checks/guide.sh" "$tree"
}
chapters
expect pass "a guide that quotes its program" "$checks/guide.sh" "$tree"
guide_fails "a quotation that is not in the program" 3_a.md '[a](../../examples/a.cpp)\n```cpp\nwalk();\n```\n'
guide_fails "a chapter without a program" 3_a.md '```cpp\nrun();\n```\n'
guide_fails "a chapter whose program is missing" 3_a.md '[a](../../examples/b.cpp)\n```cpp\nrun();\n```\n'
guide_fails "a chapter that quotes nothing" 3_a.md '[a](../../examples/a.cpp)\n'
guide_fails "a chapter that the index does not link" 14_a.md '[a](../../examples/a.cpp)\n```cpp\nrun();\n```\n'

if "${CROSSRANK_TEST_PYTHON:-python3}" -m ruff --version >/dev/null 2>&1; then
  broken "an import that nothing uses" lib/a.py 'import os' "$checks/python_style.sh" "$tree"
fi

versions() { # CHANGE_LOG BUILD_FILE
  fresh
  mkdir -p "$tree"/{lib/cmake,docs/man}
  printf '#define CROSSRANK_VERSION_%s 1\n' MAJOR MINOR PATCH >"$tree/include/crossrank/version.hpp"
  echo "$1" >"$tree/CHANGELOG.md"
  echo "$2" >"$tree/CMakeLists.txt"
}
versions "## 1.1.1" "project(a)"
expect pass "one version" "$checks/version.sh" "$tree"
versions "## 1.1.0" "project(a)"
expect fail "a change log with another version" "$checks/version.sh" "$tree"
versions "## 1.1.1" "project(a VERSION 1.1.1)"
expect fail "a version that is repeated" "$checks/version.sh" "$tree"

mapped() { # FOLDERS FILES LAYERS: writes a small tree and a map of it; each argument is a line that is added to the map
  rm -rf "${tree:?}"/*
  mkdir -p "$tree"/{docs,lib/core,lib/node,tests/core}
  touch "$tree"/lib/core/{error,log}.cpp "$tree/lib/core/error.hpp" "$tree/lib/node/group.hpp" "$tree/tests/core/error_test.cpp"
  echo 'crossrank_layer(core SOURCES error.cpp log.cpp)' >"$tree/lib/core/CMakeLists.txt"
  printf 'crossrank_layer(node # shared memory\n  USES core\n  SOURCES group.cpp)\n' >"$tree/lib/node/CMakeLists.txt"
  printf '## Layers\n| `core` | | errors |\n%s\n## Folders\n### `lib/core/`\n- `error`: errors\n%s\n### `lib/node/`\n- `group`: a group\n## Tests\n%s\n' \
    "$3" "$2" "$1" >"$tree/docs/ARCHITECTURE.md"
}
folder='| `tests/core/` | tests |' file='- `log`: log' layer='| `node` | `core` | groups |'
map_fails() { # DESCRIPTION FOLDERS FILES LAYERS
  mapped "$2" "$3" "$4"
  expect fail "$1" "$checks/architecture.sh" "$tree"
}
mapped "$folder" "$file" "$layer"
expect pass "a map of the code" "$checks/architecture.sh" "$tree"
map_fails "a folder that is not on the map" "" "$file" "$layer"
map_fails "a folder that does not exist" "$folder"$'\n| `tests/node/` | tests |' "$file" "$layer"
map_fails "a file that is not on the map" "$folder" "" "$layer"
map_fails "a file that does not exist" "$folder" "$file"$'\n- `text`: text' "$layer"
map_fails "a layer that is not on the map" "$folder" "$file" ""
map_fails "a layer that may include less than the map tells" "$folder" "$file" '| `node` | `core`, `tensor` | groups |'
map_fails "a path that does not exist" "$folder"$'\nSee `lib/node/group.cpp`.' "$file" "$layer"

includes() { # LINES: what the layers can include, beside the map above
  mapped "$folder" "$file" "$layer"
  printf '%s\n' "$1" >"$tree/includes.txt"
}
core='core:/build/layers/core'
includes "$core"$'\n''node:/build/layers/node;/build/layers/core'
expect pass "layers that include what the map allows" "$checks/layers.sh" "$tree" "$tree/includes.txt"
includes 'core:/build/layers/core;/build/layers/node'
expect fail "a layer that can include a layer above it" "$checks/layers.sh" "$tree" "$tree/includes.txt"
includes "$core;$tree"
expect fail "a layer that can include the whole tree" "$checks/layers.sh" "$tree" "$tree/includes.txt"
includes 'node:/build/layers/core'
expect fail "a layer without its own headers" "$checks/layers.sh" "$tree" "$tree/includes.txt"
includes ''
expect fail "no layer" "$checks/layers.sh" "$tree" "$tree/includes.txt"
