#!/bin/bash
# Runs a test under mpirun with a hard limit that only ends a hang, and kills what is left of it.
# Usage: run_mpi.sh [--nodes declared|real] [--dead N] [--ends yes] [--spin yes] [--as LAUNCHER] RANKS PROGRAM [ARGUMENTS...]
#   --nodes declared  the ranks of this host declare that they are on two
#   --nodes real      two connected network namespaces are the hosts
#   --dead N          the last N ranks die; all others must have written the same error
#   --ends yes        the last rank dies, and mpirun ends the job
#   --spin yes        Open MPI does not yield while it waits: under load, each yield costs the time of all other programs
#   --as LAUNCHER     sets the variables of slurm, torchrun or pmix instead of Open MPI's
set -euo pipefail
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
nodes='' dead=0 ends='' yield=1 as=()
while [[ $1 == --* ]]; do
  case $1 in
    --nodes) nodes=$2 ;;
    --dead) dead=$2 ;;
    --ends) ends=$2 ;;
    --spin) yield=0 ;;
    --as) as=("$here/as_launcher.sh" "$2") ;;
    *) echo "unknown option $1"; exit 2 ;;
  esac
  shift 2
done
ranks=$1
shift
set -- "${as[@]}" "$@"
command -v mpirun >/dev/null || { echo "SKIPPED: there is no mpirun"; exit 77; }

# Show only failures, not every passed test of every rank.
export GTEST_BRIEF=${GTEST_BRIEF:-1} GTEST_COLOR=no
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_btl_base_warn_component_unused=0
# The ranks share processors with other tests, so they yield while they wait and must not be bound to a core.
options=(--oversubscribe --bind-to none --mca mpi_yield_when_idle "$yield")
CROSSRANK_TEST_FOLDER=$(mktemp -d)
export CROSSRANK_TEST_FOLDER
# Killed daemons leave their session folders behind. This folder is removed at the end.
mkdir "$CROSSRANK_TEST_FOLDER/tmp"
export TMPDIR=$CROSSRANK_TEST_FOLDER/tmp
finish() {
  [[ $nodes != real ]] || "$here/two_hosts.sh" down "$$" || true
  rm -rf "$CROSSRANK_TEST_FOLDER"
}
trap finish EXIT
[[ $dead -eq 0 ]] || export CROSSRANK_TEST_DEATHS=$dead
[[ $dead -eq 0 ]] || options+=(--enable-recovery)

launch=(mpirun "${options[@]}" -n "$ranks" "$@")
half=$((ranks / 2))
if [[ $nodes == declared ]]; then
  launch=(mpirun "${options[@]}" -n "$half" -x CROSSRANK_HOST_ID=hostA "$@" : -n "$((ranks - half))" -x CROSSRANK_HOST_ID=hostB "$@")
elif [[ $nodes == real ]]; then
  "$here/two_hosts.sh" up "$$" || { code=$?; [[ $code -ne 77 ]] || echo "SKIPPED: network namespaces are refused here"; exit "$code"; }
  [[ $dead -eq 0 ]] || set -- "$here/record_status.sh" "$@"
  launch=("$here/two_hosts.sh" run "$$" "$half" "${options[@]}" -- "$@")
fi
status=0
if [[ -n $ends ]]; then
  limit=${CROSSRANK_TEST_LIMIT:-600}
  SECONDS=0
  timeout -k 5 "$limit" "${launch[@]}" || status=$?
  ((status != 0 && SECONDS < limit)) || { echo "mpirun ended with $status after $SECONDS s"; exit 1; }
  exit 0
fi
if [[ $dead -eq 0 ]]; then
  timeout -k 5 "${CROSSRANK_TEST_LIMIT:-1500}" "${launch[@]}" || status=$?
  exit "$status"
fi

# mpirun 4.1 may wait for the dead rank forever and reports failure anyway. Only the errors of the survivors count.
living=$((ranks - dead))
told() { find "$CROSSRANK_TEST_FOLDER" -maxdepth 1 -name '[0-9]*' -size +0 | wc -l; }
# Between hosts, Open MPI 4.1 itself may end a survivor: with -1 when a message of its own meets the broken connection, or
# with -61 when its runtime is told of the death.
ended_by_open_mpi() {
  for ((rank = 0; rank < living; ++rank)); do
    [[ ! -s $CROSSRANK_TEST_FOLDER/$rank ]] || continue
    case $(cat "$CROSSRANK_TEST_FOLDER/status.$rank" 2>/dev/null) in 255 | 195) return 0 ;; esac
  done
  return 1
}
attempt() {
  rm -f "$CROSSRANK_TEST_FOLDER"/[0-9]* "$CROSSRANK_TEST_FOLDER"/status.*
  timeout -k 5 "${CROSSRANK_TEST_LIMIT:-600}" "${launch[@]}" &
  job=$!
  while kill -0 "$job" 2>/dev/null && (($(told) < living)) && ! ended_by_open_mpi; do read -rt 0.1 <> <(:) || true; done
  for ((wait = 0; wait < 30; ++wait)); do
    kill -0 "$job" 2>/dev/null || break
    read -rt 0.1 <> <(:) || true
  done
  kill -TERM "$job" 2>/dev/null || true
  wait "$job" || status=$?
}
attempt
for repeat in 1 2; do
  ended_by_open_mpi || break
  echo "Open MPI ended a survivor; repeat $repeat"
  attempt
done
if (($(told) != living)); then echo "$(told) of $living survivors got an error (mpirun: $status)"; exit 1; fi
causes=$(for ((rank = 0; rank < living; ++rank)); do head -n 1 "$CROSSRANK_TEST_FOLDER/$rank"; done | sort -u)
if [[ $(wc -l <<<"$causes") -ne 1 ]]; then printf 'the survivors got different errors:\n%s\n' "$causes"; exit 1; fi
echo "errors after $(for ((rank = 0; rank < living; ++rank)); do sed -n 2p "$CROSSRANK_TEST_FOLDER/$rank"; done | paste -sd, )"
cat "$CROSSRANK_TEST_FOLDER"/0
