#!/bin/bash
# Checks that the README has at most 120 lines and that every relative link in the README and in docs/ leads to a file, and
# to a heading if it names one. Checks that every test that docs/RELIABILITY.md names exists. Usage: documents.sh SOURCE_TREE
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
done < <(echo README.md; find docs -name '*.md' 2>/dev/null)

# Tests are named `Suite` or `Suite.case`; the fuzz targets are tests of CMake.
tests=$(grep -rhsoE '^(TEST|TEST_F|TEST_P|TYPED_TEST)\([A-Za-z0-9_]+, ?[A-Za-z0-9_]+' tests --include='*.cpp' | sed -E 's/^[A-Z_]+\(//; s/, ?/./') || true
while read -r test; do
  case $test in
    *.*) grep -qxF -- "$test" <<<"$tests" || fail "docs/RELIABILITY.md: no test is called $test" ;;
    *Error) ;;
    *) grep -q "^$test\." <<<"$tests" || fail "docs/RELIABILITY.md: no suite is called $test" ;;
  esac
done < <(grep -soE '`[A-Z][A-Za-z0-9]+(\.[a-z_0-9]+)?`' docs/RELIABILITY.md | tr -d '`' | sort -u)
exit "$failed"
