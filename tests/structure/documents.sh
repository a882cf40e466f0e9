#!/bin/bash
# Checks that the README has at most 120 lines and that every relative link in a document leads to a file, and to a heading if
# it names one. Checks that the tests that docs/RELIABILITY.md and docs/decisions/ name exist, and the files that
# CONTRIBUTING.md and docs/decisions/ name. Usage: documents.sh SOURCE_TREE
set -euo pipefail
cd "$1"
failed=0
fail() { echo "$*"; failed=1; }

# Prints the anchors of a document's headings: lower case, blanks as hyphens, no punctuation.
anchors_of() {
  grep -E '^#+ ' "$1" | sed -E 's/^#+ +//' | tr '[:upper:]' '[:lower:]' | sed -E 's/[^a-z0-9 _-]//g; s/ /-/g'
}

lines=$(wc -l <README.md)
((lines <= 120)) || fail "README.md has $lines lines, more than 120"
while read -r document; do
  while read -r link; do
    [[ $link != *://* && $link != mailto:* ]] || continue
    file=${link%%#*} anchor=''
    [[ $link != *'#'* ]] || anchor=${link#*#}
    target=$document
    [[ -z $file ]] || target=$(dirname "$document")/$file
    [[ -e $target ]] || { fail "$document: no file at $link"; continue; }
    [[ -z $anchor ]] || anchors_of "$target" | grep -qxF -- "$anchor" || fail "$document: no heading at $link"
  done < <(grep -oE '\]\([^) ]+\)' "$document" | sed -E 's/^\]\(//; s/\)$//')
done < <(ls -d README.md CONTRIBUTING.md CHANGELOG.md python/README.md tests/data/README.md 2>/dev/null; find docs -name '*.md' 2>/dev/null)

# Tests are named `Suite` or `Suite.case`; the fuzz targets are tests of CMake.
tests=$(grep -rhsoE '^(TEST|TEST_F|TEST_P|TYPED_TEST)\([A-Za-z0-9_]+, ?[A-Za-z0-9_]+' tests --include='*.cpp' | sed -E 's/^[A-Z_]+\(//; s/, ?/./') || true
# Prints what matches $1 between backquotes in standard input.
named_in() { grep -oE "\`$1\`" | tr -d '`' | sort -u; }
# The regular expression of a path in the tree, and of a pattern for several.
a_path='[a-z]+/[A-Za-z0-9_./*-]+'
require_file() { compgen -G "$2" >/dev/null || fail "$1: no file at $2"; }
require_test() {
  case $2 in
    *.*) grep -qxF -- "$2" <<<"$tests" || fail "$1: no test is called $2" ;;
    *Error) ;;
    *) grep -q "^$2\." <<<"$tests" || fail "$1: no suite is called $2" ;;
  esac
}
a_test='[A-Z][A-Za-z0-9]+(\.[a-z_0-9]+)?'
while read -r test; do
  require_test docs/RELIABILITY.md "$test"
done < <([[ ! -e docs/RELIABILITY.md ]] || named_in "$a_test" <docs/RELIABILITY.md)
# The tests of the Python package are named by file and function.
python_section=$(sed -n '/^## The Python package/,/^## /p' docs/RELIABILITY.md 2>/dev/null) || true
while read -r test; do
  require_file docs/RELIABILITY.md "tests/python/$test"
done < <(named_in '([a-z_]+/)?test_[a-z_]+\.py' <<<"$python_section")
while read -r test; do
  grep -rqE "def $test\(" tests/python || fail "docs/RELIABILITY.md: no function of tests/python is called $test"
done < <(named_in '[a-z]+(_[a-z0-9]+)+' <<<"$python_section")
while read -r path; do
  [[ $path == */NAME* ]] || require_file CONTRIBUTING.md "$path"  # NAME is a placeholder for a new backend
done < <([[ ! -e CONTRIBUTING.md ]] || named_in "$a_path" <CONTRIBUTING.md)
# A decision ends with a paragraph "Code: ... Tests: ...".
for decision in docs/decisions/*.md; do
  [[ -e $decision && ${decision##*/} != README.md ]] || continue
  sources=$(sed -n '/^Code/,$p' "$decision")
  [[ -n $sources ]] || fail "$decision: no paragraph says where the code and the tests are"
  while read -r path; do
    require_file "$decision" "$path"
  done < <(named_in "$a_path" <<<"$sources")
  while read -r test; do
    require_test "$decision" "$test"
  done < <(sed -n '/[Tt]ests:/,$p' <<<"$sources" | sed '1s/.*[Tt]ests://' | named_in "$a_test")
done
exit "$failed"
