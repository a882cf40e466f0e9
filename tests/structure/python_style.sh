#!/bin/bash
# Checks the Python files with ruff and pyright, where these are installed. Usage: python_style.sh SOURCE_TREE
# CROSSRANK_TEST_PYTHON names the Python that has them. pyright needs torch and numpy there too, whose types the package uses.
set -euo pipefail
cd "$1"
python=${CROSSRANK_TEST_PYTHON:-python3}
checked=no
if "$python" -m ruff --version >/dev/null 2>&1; then
  "$python" -m ruff check --no-cache .
  "$python" -m ruff format --no-cache --check .
  checked=yes
fi
if "$python" -c 'import numpy, torch' 2>/dev/null && "$python" -m pyright --version >/dev/null 2>&1; then
  "$python" -m pyright --pythonpath "$(command -v "$python")"
  checked=yes
fi
[[ $checked == yes ]] || { echo "skipped: neither ruff nor pyright is installed for $python"; exit 77; }
