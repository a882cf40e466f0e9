#!/bin/bash
# Checks that the product waits only through lib/platform, where deadlines and the injectable clock are.
# Usage: waiting.sh SOURCE_TREE
set -euo pipefail
cd "$1"
if grep -rnE --include='*.hpp' --include='*.cpp' \
  '\b(sleep_for|sleep_until|usleep|nanosleep|clock_nanosleep|sched_yield|this_thread::yield|pthread_yield)\b' \
  include lib collectives transforms workspace tools | grep -v '^lib/platform/'; then
  echo "these lines sleep or yield outside lib/platform"
  exit 1
fi
