#!/usr/bin/env bash
# Trains one run on BABILong with rising lengths; each stage continues from the last one's checkpoint.
# Usage: TASK=qa1 STEPS=2000 LENGTHS="512 1024 2048" bash scripts/babilong_curriculum.sh MODEL.gin RUN [FLAGS]
# STEPS is of each stage. Stage N draws its documents from the first N lengths. FLAGS go to brt.train.
set -euo pipefail
model=$1 run=$2
shift 2
task=${TASK:-qa1} steps=${STEPS:-2000} stage=0 lengths=""
store=stores/babilong_$task
for length in ${LENGTHS:-512 1024 2048 4096}; do
    stage=$((stage + 1)) lengths="$lengths$length, " store=${store}_$length
    python -m brt.train --gin_file="$model" --gin_file=configs/tasks/babilong.gin --workdir="$run" \
        --gin.BabiLong.task="'$task'" --gin.BabiLong.lengths="($lengths)" \
        --gin.Corpus.store="'$store'" \
        --gin.Trainer.steps=$((steps * stage)) --allow_changes "$@"
done
