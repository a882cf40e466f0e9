#!/bin/bash
# Makes two hosts on one machine: connected network namespaces with names of their own, each held by a process.
#   two_hosts.sh up ID | down ID | run ID SLOTS_EACH MPIRUN_OPTIONS... -- PROGRAM...
# `up` exits with 77 where the system refuses namespaces. The script is also the agent by which mpirun reaches a host.
# Named namespaces are not used: they leave a mount behind and mount /sys again, which a changed root does not allow.
set -euo pipefail
self=$(readlink -f "${BASH_SOURCE[0]}")
hosts=(a b)
folder() { echo "${TMPDIR:-/tmp}/crossrank-hosts-$1"; }
holder() { cat "$(folder "$1")/$2"; }

# Starts the process that holds host $2 of $1, and waits until it runs.
start() {
  unshare --net --uts bash -c 'hostname "crossrank-$1" && exec sleep 3600' holder "$2" </dev/null >/dev/null 2>&1 &
  local pid=$!
  echo "$pid" >"$(folder "$1")/$2"
  until [[ $(cat "/proc/$pid/comm" 2>/dev/null) == sleep ]]; do kill -0 "$pid" 2>/dev/null || return 77; done
}

# Runs a command on host $2 of $1.
on() { nsenter --target "$(holder "$1" "$2")" --net --uts "${@:3}"; }

case $1 in
  up)
    id=$2
    for tool in ip nsenter unshare hostname; do command -v "$tool" >/dev/null || exit 77; done
    mkdir -m 700 "$(folder "$id")"
    for host in "${hosts[@]}"; do start "$id" "$host" || exit 77; done
    ip link add "va$id" netns "$(holder "$id" a)" type veth peer name "vb$id" netns "$(holder "$id" b)" || exit 77
    address=0
    for host in "${hosts[@]}"; do
      on "$id" "$host" ip address add "10.213.7.$((++address))/24" dev "v$host$id"
      on "$id" "$host" ip link set "v$host$id" up
      on "$id" "$host" ip link set lo up
    done
    ;;
  down)
    id=$2
    for host in "${hosts[@]}"; do
      pid=$(holder "$id" "$host" 2>/dev/null) && space=$(readlink "/proc/$pid/ns/net") || continue
      space=${space//[^0-9]/}
      # All processes that still run there, including the holder.
      find /proc -maxdepth 3 -path '/proc/[0-9]*/ns/net' -lname "net:\\[$space\\]" 2>/dev/null | cut -d / -f 3 |
        xargs -r kill -9 2>/dev/null || true
    done
    rm -rf "$(folder "$id")"
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
    exec nsenter --target "$(holder "$id" a)" --net --uts \
      mpirun "${options[@]}" --mca plm rsh --mca plm_rsh_agent "$self" --mca btl tcp,self --mca pml ob1 \
      --mca btl_tcp_if_include 10.213.7.0/24 --mca oob_tcp_if_include 10.213.7.0/24 --mca routed direct \
      --host "10.213.7.1:$slots,10.213.7.2:$slots" -n $((2 * slots)) "${exports[@]}" "$@"
    ;;
  *)
    # mpirun calls its agent with a host and a shell command to run there.
    while [[ $1 == -* ]]; do shift; done
    shift
    exec nsenter --target "$(holder "$CROSSRANK_TEST_HOSTS" b)" --net --uts bash -c 'eval "$*"' agent "$@"
    ;;
esac
