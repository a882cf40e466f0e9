#!/bin/bash
# Checks that no file names a machine's private folders, reaches out of the tree or leaves something for later.
# Usage: words.sh SOURCE_TREE
set -euo pipefail
cd "$1"
# The brackets keep these lines from finding themselves.
paths='(^|[^[:alnum:]_.$}/])/([w]ork|[h]ome|[r]oot|[U]sers)(/|$)'
later='\b([T]ODO|[F]IXME|[X]XX)\b|[n]ot (yet )?implemented'
outside='(PROJECT_SOURCE_DIR\}|[$]root|[$]\{root\})/[.][.]|[.][.]/[s]hared'
if find . -type f -not -path './.git' -not -path './.git/*' -not -path './build*' -not -path '*/.venv/*' -not -path './bench/results/*' -print0 |
  xargs -0 grep -nIE "$paths|$later|$outside"; then
  echo "these lines name a private folder, reach out of the tree or leave something for later"
  exit 1
fi
