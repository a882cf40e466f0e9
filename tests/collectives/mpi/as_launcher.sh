#!/bin/bash
# Runs a program with the variables that a launcher other than mpirun would set. MPI still finds its job.
# Usage: as_launcher.sh slurm|torchrun|pmix PROGRAM [ARGUMENTS...]
set -euo pipefail
launcher=$1
shift
rank=$OMPI_COMM_WORLD_RANK ranks=$OMPI_COMM_WORLD_SIZE local=$OMPI_COMM_WORLD_LOCAL_RANK here=$OMPI_COMM_WORLD_LOCAL_SIZE
unset OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_LOCAL_SIZE
case $launcher in
  slurm)
    export SLURM_PROCID=$rank SLURM_NTASKS=$ranks SLURM_LOCALID=$local SLURM_STEP_ID=0 SLURM_JOB_ID=4711
    export SLURM_NNODES=$((ranks / here))
    ;;
  torchrun)
    export RANK=$rank WORLD_SIZE=$ranks LOCAL_RANK=$local LOCAL_WORLD_SIZE=$here
    export TORCHELASTIC_RUN_ID=run-4711 MASTER_ADDR=127.0.0.1 MASTER_PORT=29511
    ;;
  pmix) ;; # PMIX_RANK and PMIX_NAMESPACE are already set
  *) echo "unknown launcher $launcher"; exit 2 ;;
esac
exec "$@"
