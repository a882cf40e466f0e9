#!/bin/bash
# Checks that doxygen has no warning over the public headers. Usage: reference.sh SOURCE_TREE DOXYGEN DOXYFILE
set -euo pipefail
folder=$(mktemp -d "${TMPDIR:-/tmp}/crossrank-reference.XXXXXX")
trap 'rm -rf "$folder"' EXIT
# The Doxyfile makes warnings errors. The output is discarded.
{ cat "$3"; echo "OUTPUT_DIRECTORY = $folder"; } | "$2" -
