#!/usr/bin/env bash
# Before renting anything: what the compiler of such a slice says of the step, on any machine with
# libtpu (pip install -e ".[tpu]"), bytes, cycles and collectives, its own estimates:
#   python -m brt.benchmark --topology=v4-32 --configs=configs/pg19_slide_13l.gin,configs/pg19_rec_fixed_skip.gin
#   python -m brt.train --dry_run --topology=v4-32 --gin_file=configs/pg19_rec_fixed_skip.gin
# Starts the same command on every host of a TPU pod slice; JAX finds the other hosts itself.
#   scripts/launch_tpu_pod.sh NAME ZONE --gin_file=configs/pg19_rec_fixed_skip.gin --workdir=FOLDER
# brt must be installed under ~/brt on each host. Not run here: no pod was at hand.
set -euo pipefail
name=${1:?name of the TPU} zone=${2:?zone of the TPU}
shift 2
printf -v arguments '%q ' "$@"
exec gcloud compute tpus tpu-vm ssh "$name" --zone="$zone" --worker=all \
    --command="cd ~/brt && . scripts/malloc.sh && .venv/bin/python -m brt.train --distributed $arguments"
