#!/bin/bash
# Checks that doxygen has no warning over the public headers. Usage: reference.sh SOURCE_TREE DOXYGEN DOXYFILE
set -euo pipefail
folder=$(mktemp -d "${TMPDIR:-/tmp}/crossrank-reference.XXXXXX")
trap 'rm -rf "$folder"' EXIT
# Warnings are errors there. Only what is read matters here, not what is written.
{ cat "$3"; echo "OUTPUT_DIRECTORY = $folder"; } | "$2" -
