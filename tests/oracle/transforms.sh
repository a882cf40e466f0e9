#!/bin/bash
# Trains small models under PyTorch's DDP and fully_shard and under ours, and compares the results.
# Usage: transforms.sh TRAINER. Exits with 77 and a reason where torch is missing. CROSSRANK_TEST_PYTHON names the Python.
set -euo pipefail
trainer=$(readlink -f "$1")
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
python=${CROSSRANK_TEST_PYTHON:-/usr/bin/python3}

skip() { echo "skipped: $*"; exit 77; }
[[ -x $python ]] || skip "$python is not installed (python3)"
"$python" -c 'import torch, safetensors, numpy' 2>/dev/null || skip "$python lacks torch, safetensors or numpy"
"$python" -c 'from torch.distributed.fsdp import fully_shard' 2>/dev/null || skip "the torch of $python has no fully_shard (2.6 or newer)"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
CROSSRANK_ORACLE_TRAINER=$trainer "$python" "$here/oracle.py" - "$work" transforms
