#!/usr/bin/env bash
#SBATCH --job-name=brt
#SBATCH --ntasks-per-node=1
#SBATCH --signal=TERM@120
#SBATCH --requeue
# One process a node, every GPU of it; JAX reads the rest from Slurm's environment.
#   sbatch --nodes=2 --gpus-per-node=8 scripts/launch_slurm.sh --gin_file=... --workdir=...
# SIGTERM, sent two minutes before the time limit, saves; a requeued job resumes.
# Not run here: no cluster was at hand.
set -euo pipefail
source scripts/malloc.sh
exec srun .venv/bin/python -m brt.train --distributed "$@"
