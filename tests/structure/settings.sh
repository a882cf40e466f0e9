#!/bin/bash
# Checks that each variable CROSSRANK_... that the product mentions in a string, or reads, is a row of the table in
# lib/core/settings.cpp. Usage: settings.sh SOURCE_TREE
set -euo pipefail
cd "$1"
table=lib/core/settings.cpp
known=$(grep -oE '"CROSSRANK_[A-Z_]*[A-Z]"' "$table" | tr -d '"' | sort -u)
[[ -n $known ]] || { echo "$table names no setting"; exit 1; }
# Only strings, because macros have such names too, and the comments of public headers.
mentioned=$({
  grep -rhoE --include='*.hpp' --include='*.cpp' --exclude=settings.cpp '"[^"]*CROSSRANK_[^"]*"' lib collectives workspace tools
  grep -rhoE --include='*.hpp' '///.*CROSSRANK_.*' include
} | grep -oE 'CROSSRANK_[A-Z_]*[A-Z]' | sort -u) || true
unknown=$(comm -13 <(echo "$known") <(echo "$mentioned"))
if [[ -n $unknown ]]; then
  echo "$table has no row for:" $unknown
  exit 1
fi
