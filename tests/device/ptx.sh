#!/bin/bash
# Checks that kernels.ptx is what `generate` makes of kernels.cu, where clang++-14 is installed with the target NVPTX, and that
# ptxas assembles it for the GPUs that it knows, where ptxas is on PATH or in /usr/local/cuda/bin. Products that are fused with
# sums, and operations that flush small numbers to zero or approximate, would give other bits than the CPU.
# Ends with 77 where neither program is. Usage: ptx.sh SOURCE_TREE
set -euo pipefail
folder=$1/lib/device/cuda/kernels
ptx=$folder/kernels.ptx
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
PATH=$PATH:/usr/local/cuda/bin
checks=0

if grep -nE '^\s*(fma|mad)\.[a-z.]*f(32|64)|\.ftz|\.approx|(add|sub|mul)\.f(32|64)' "$ptx"; then
  echo "$ptx has operations with other bits than those of the CPU"
  exit 1
fi
if command -v clang++-14 >/dev/null && clang++-14 -print-targets | grep -qw nvptx64; then
  checks=$((checks + 1))
  "$folder/generate" clang++-14 >"$work/kernels.ptx"
  diff "$work/kernels.ptx" "$ptx" >"$work/difference" || {
    head -n 20 "$work/difference"
    echo "kernels.ptx is not that of kernels.cu: run lib/device/cuda/kernels/generate >lib/device/cuda/kernels/kernels.ptx"
    exit 1
  }
fi
if command -v ptxas >/dev/null; then
  checks=$((checks + 1))
  assembled=
  ptxas --help >"$work/help"
  for arch in sm_50 sm_70 sm_80 sm_90 sm_100; do
    grep -qF "'$arch'" "$work/help" || continue
    ptxas -arch="$arch" "$ptx" -o "$work/kernels.cubin"
    assembled+=" $arch"
  done
  echo "assembled for$assembled"
  [[ -n $assembled ]]
fi
((checks > 0)) || { echo "skipped: neither clang++-14 with NVPTX nor ptxas"; exit 77; }
