#!/bin/bash
# Checks that docs/ARCHITECTURE.md names every folder of code, every source and header of the product and every layer with
# the layers that it may include, and that everything it names exists. Usage: architecture.sh SOURCE_TREE
#
# In the document a heading or the first cell of a table row names a folder: `lib/core/`. A list item below the heading
# names a file of that folder without its suffix: "- `error`: ...". The table of layers has the columns layer, may include and folders.
set -euo pipefail
cd "$1"
document=docs/ARCHITECTURE.md
failed=0
# compare WHAT EXPECTED GOT: prints the lines that are in one of the two sorted lists only.
compare() {
  local differences
  differences=$(diff <(echo "$2") <(echo "$3") | grep '^[<>]') || true
  [[ -n $differences ]] || return 0
  sed -E "s|^<|$document does not name this $1:|; s|^>|$document names this $1, which does not exist:|" <<<"$differences"
  failed=1
}
roots() { find include lib collectives transforms workspace tools python "$@" -type f -not -path '*/.venv/*' 2>/dev/null || true; }

folders=$(roots tests bench examples | grep -vE '^tests/(data|fuzz/seeds)/' | grep -E '\.(hpp|cpp|h|c|py|sh|cmake|pml)$' | sed 's|[^/]*$||' | sort -u)
named=$(grep -oE '^(###|\|) `[a-z0-9_/]+/`' "$document" | tr -d '#|` ' | sort -u)
compare folder "$folders" "$named"

files=$(roots | grep -E '\.(hpp|cpp)$|^python/.*\.py$' | sed -E 's/\.[a-z]+$//' | sort -u)
named=$(awk '/^### `.*\/`/ { gsub(/[#` ]/, ""); folder = $0; next } /^##/ { folder = ""; next }
             folder != "" && /^- `/ { split($0, part, "`"); print folder part[2] }' "$document" | sort)
compare file "$files" "$named"

layers=$({ find lib collectives transforms workspace -name CMakeLists.txt -exec cat {} + 2>/dev/null || true; } | sed 's/#.*//' | tr '\n' ' ' | sed 's/crossrank_layer(/\n&/g' |
  sed -nE 's/^crossrank_layer\(([a-z_]+)([^)]*)\).*/\1\2/p' |
  awk '{ uses = ""; on = 0; for (i = 2; i <= NF; i++) { if ($i ~ /^[A-Z]+$/) on = ($i == "USES"); else if (on) uses = uses " " $i } print $1 ":" uses }' | sort)
named=$(awk '/^##/ { on = ($0 == "## Layers") } on && /^\| `/' "$document" | awk -F'|' '{ gsub(/[`, ]+/, " ", $3); gsub(/[` ]/, "", $2); sub(/ +$/, "", $3); print $2 ":" $3 }' | sort)
compare layer "$layers" "$named"

while read -r path; do
  [[ -e $path ]] || { echo "$document names $path, which does not exist"; failed=1; }
done < <(grep -oE '`(include|lib|collectives|workspace|tools|tests|bench|examples|docs)/[A-Za-z0-9_./]*`' "$document" | tr -d '`' | sort -u)
exit "$failed"
