#!/bin/bash
# Checks that no file names a private folder of a machine, a path out of the tree, or work that is left for later, and that
# words are spelled with -ize and nothing "[k]nows no" other thing. Usage: words.sh SOURCE_TREE
set -euo pipefail
cd "$1"
# Prints the lines of all files that match.
matches() {
  find . -type f -not -path './.git' -not -path './.git/*' -not -path './build*' -not -path '*/.venv/*' -not -path './bench/results/*' -print0 |
    xargs -0 grep -nIE "$@"
}
# The brackets keep the patterns from matching this file.
paths='(^|[^[:alnum:]_.$}/])/([w]ork|[h]ome|[r]oot|[U]sers)(/|$)'
later='\b([T]ODO|[F]IXME|[X]XX)\b|[n]ot (yet )?implemented'
outside='(PROJECT_SOURCE_DIR\}|[$]root|[$]\{root\})/[.][.]|[.][.]/[s]hared'
if matches "$paths|$later|$outside"; then
  echo "these lines name a private folder, a path out of the tree, or work that is left for later"
  exit 1
fi
if matches -i '\b[k]nows? no\b'; then
  echo "these lines say what a thing does not know: write what it does not have, support or depend on"
  exit 1
fi
stems='[i]nitiali|[f]inali|[g]enerali|[r]ecogni|[s]ynchroni|[q]uanti|[o]ptimi|[s]peciali|[n]ormali'
if matches -i "\b[[:alpha:]_]*($stems)s(e|ed|es|er|ing|ation)\b"; then
  echo "these words are spelled with -ize in this project"
  exit 1
fi
