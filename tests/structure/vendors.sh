#!/bin/bash
# Checks that docs/DEVICES.md lists the files that name a vendor's kind of device or its graphs, under "A second vendor".
# Other code goes by the device of a tensor. Usage: vendors.sh SOURCE_TREE
set -euo pipefail
cd "$1"
document=docs/DEVICES.md
named=$({ grep -rnE 'Kind::cuda|Device::cuda\(|cuda::(Capture|ReplayObserver)' include lib collectives workspace transforms \
  --include='*.hpp' --include='*.cpp' || true; } | grep -vE ':[[:space:]]*//' | cut -d : -f 1 |
  { grep -vE '^(lib/device/cuda|collectives/nccl)/' || true; } | sort -u)
listed=$(awk '/^## / { on = ($0 == "## A second vendor") } on' "$document" |
  { grep -oE '`(include|lib|collectives|workspace|transforms)/[a-z_/]+\.(hpp|cpp)`' || true; } | tr -d '`' |
  { grep -vE '^(lib/device/cuda|collectives/nccl)/' || true; } | sort -u)
differences=$(diff <(echo "$named") <(echo "$listed") | grep '^[<>]') || true
[[ -n $differences ]] || exit 0
sed -E "s|^<|$document does not list this file, which names a vendor:|; s|^>|$document lists this file, which names no vendor:|" <<<"$differences"
exit 1
