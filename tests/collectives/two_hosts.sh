#!/bin/bash
# Two hosts on one machine: network namespaces joined by a wire, each with a name of its own.
#   two_hosts.sh up ID | down ID | run ID SLOTS_EACH MPIRUN_OPTIONS... -- PROGRAM...
# `up` ends with 77 where the system refuses namespaces. Also the agent by which mpirun reaches a host.
set -euo pipefail
self=$(readlink -f "${BASH_SOURCE[0]}")
a() { echo "crA$1"; }
b() { echo "crB$1"; }

case $1 in
  up)
    id=$2
    command -v ip >/dev/null || exit 77
    ip netns add "$(a "$id")" 2>/dev/null || exit 77
    ip netns add "$(b "$id")" || exit 77
    ip link add "va$id" type veth peer name "vb$id" || exit 77
    ip link set "va$id" netns "$(a "$id")"
    ip link set "vb$id" netns "$(b "$id")"
    for end in "$(a "$id") va$id 10.213.7.1" "$(b "$id") vb$id 10.213.7.2"; do
      read -r space device address <<<"$end"
      ip netns exec "$space" ip address add "$address/24" dev "$device"
      ip netns exec "$space" ip link set "$device" up
      ip netns exec "$space" ip link set lo up
    done
    ;;
  down)
    id=$2
    for space in "$(a "$id")" "$(b "$id")"; do
      if [[ -e /var/run/netns/$space ]]; then
        ip netns pids "$space" | xargs -r kill -9 2>/dev/null || true
        ip netns delete "$space" || true
      fi
    done
    ;;
  run)
    id=$2 slots=$3
    shift 3
    options=()
    while [[ $1 != -- ]]; do options+=("$1"); shift; done
    shift
    export CROSSRANK_TEST_HOSTS=$id
    exports=()
    for name in "${!CROSSRANK_TEST_@}" "${!GTEST_@}" ${TMPDIR:+TMPDIR}; do exports+=(-x "$name"); done
    hosts=10.213.7.1:$slots,10.213.7.2:$slots
    exec ip netns exec "$(a "$id")" unshare --uts bash -c 'hostname crossrank-a; exec "$@"' mpirun \
      mpirun "${options[@]}" --mca plm rsh --mca plm_rsh_agent "$self" --mca btl tcp,self --mca pml ob1 \
      --mca btl_tcp_if_include 10.213.7.0/24 --mca oob_tcp_if_include 10.213.7.0/24 --mca routed direct \
      --host "$hosts" -n $((2 * slots)) "${exports[@]}" "$@"
    ;;
  *)
    # mpirun calls its agent with a host and a command for a shell there.
    while [[ $1 == -* ]]; do shift; done
    shift
    exec ip netns exec "$(b "$CROSSRANK_TEST_HOSTS")" unshare --uts bash -c 'hostname crossrank-b; eval "$*"' agent "$@"
    ;;
esac
