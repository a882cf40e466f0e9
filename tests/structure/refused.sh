#!/bin/bash
# Checks that the compiler refuses each program of a folder for the reason in its first line.
# Usage: refused.sh SOURCE_TREE COMPILER FOLDER
set -euo pipefail
cd "$1"
for program in "$3"/*.cpp; do
  reason=$(sed -n '1s,^// refused: ,,p' "$program")
  if said=$("$2" -std=c++20 -fsyntax-only -Iinclude "$program" 2>&1); then
    echo "$program was accepted"
    exit 1
  fi
  [[ -n $reason && $said == *"$reason"* ]] || { echo "$program: not refused because $reason:"; echo "$said"; exit 1; }
done
