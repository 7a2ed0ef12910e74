#!/usr/bin/env bash
# What scripts/launch_slurm.sh has the nodes run: a command of brt, one process a task. SIGTERM, which
# Slurm sends before the time limit, is passed on: brt.train saves and stops, and the job is queued
# again. JAX finds the other nodes in Slurm's environment.
set -euo pipefail
cd "${SLURM_SUBMIT_DIR:-.}"
source scripts/malloc.sh
# srun does not take it from its job.
[ -z "${SLURM_CPUS_PER_TASK:-}" ] || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
stopped=''
trap 'stopped=1; kill -TERM "$child"' TERM
srun "${PYTHON:-.venv/bin/python}" -m "$@" &
child=$!
status=0
wait "$child" || status=$?
if [ -n "$stopped" ]; then
    # The first wait ended with the signal, this one with the processes.
    wait "$child" || true
    exec scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
