#!/bin/bash
# Checks that a layer cannot include a header of a layer that docs/ARCHITECTURE.md does not allow it to use.
# Usage: layers.sh SOURCE_TREE INCLUDES
# Each line of INCLUDES is a layer, a colon, and the include directories with which the layer is compiled, separated by
# semicolons. The last part of a directory under layers/ is the layer whose headers it holds.
set -euo pipefail
awk -v includes="$2" '
  FILENAME != includes {
    if (/^## /) table = ($0 == "## Layers")
    if (!table || !/^\| `/) next
    split($0, cell, "|")
    gsub(/[` ]/, "", cell[2])
    gsub(/[`,]+/, " ", cell[3])
    known[cell[2]] = 1
    allowed[cell[2], cell[2]] = 1
    count = split(cell[3], uses, " ")
    for (i = 1; i <= count; i++)
      for (layer in known)
        if ((uses[i], layer) in allowed) allowed[cell[2], layer] = 1
    next
  }
  /:/ {
    layer = $0; sub(/:.*/, "", layer)
    line = $0; sub(/[^:]*:/, "", line)
    count = split(line, folders, ";")
    own = 0
    for (i = 1; i <= count; i++) {
      if (folders[i] !~ /\/layers\//) {
        if (folders[i] != "" && system("test -d " folders[i] "/lib -o -d " folders[i] "/collectives -o -d " folders[i] "/workspace") == 0) {
          print layer " is compiled with the whole tree " folders[i]; failed = 1
        }
        continue
      }
      held = folders[i]; sub(/.*\//, "", held)
      own += held == layer
      if (!((layer, held) in allowed)) { print layer " can include headers of " held ", which docs/ARCHITECTURE.md does not allow"; failed = 1 }
    }
    if (!own) { print layer " cannot include its own headers"; failed = 1 }
    seen++
  }
  END {
    if (!seen) { print "no layer is listed in " includes; failed = 1 }
    exit failed
  }' "$1/docs/ARCHITECTURE.md" "$2"
