#!/bin/bash
# Checks that no file names a private folder of a machine, a path out of the tree, or work that is left for later.
# Usage: words.sh SOURCE_TREE
set -euo pipefail
cd "$1"
# The brackets keep the patterns from matching this file.
paths='(^|[^[:alnum:]_.$}/])/([w]ork|[h]ome|[r]oot|[U]sers)(/|$)'
later='\b([T]ODO|[F]IXME|[X]XX)\b|[n]ot (yet )?implemented'
outside='(PROJECT_SOURCE_DIR\}|[$]root|[$]\{root\})/[.][.]|[.][.]/[s]hared'
if find . -type f -not -path './.git' -not -path './.git/*' -not -path './build*' -not -path '*/.venv/*' -not -path './bench/results/*' -print0 |
  xargs -0 grep -nIE "$paths|$later|$outside"; then
  echo "these lines name a private folder, a path out of the tree, or work that is left for later"
  exit 1
fi
