#!/usr/bin/env bash
# From nothing to a trained and evaluated Block-Recurrent Transformer in a few minutes.
# Trains on the source code of Python's standard library, which is on this machine already.
# Run again, it goes on where it stopped, or says that it is done.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/environment.sh ""
source scripts/malloc.sh
run=runs/quickstart
started=$SECONDS
python -m brt.train --gin_file=configs/quickstart.gin --workdir=$run
if [ ! -f $run/evaluation_test.json ]; then
    python -m brt.evaluate --workdir=$run --gin.Evaluation.split='"test"'
fi
echo
echo "Trained and evaluated in $((SECONDS - started)) s. What is where:"
echo "  $run/checkpoints        parameters, optimizer, caches"
echo "  $run/metrics.jsonl      every number reported; TensorBoard files beside it"
echo "  $run/operative_config.gin   every setting in force"
echo "  $run/evaluation_test.json   held-out modules, state kept and cleared"
echo "Next: change something, for example"
echo "  source .venv/bin/activate"
echo "  python -m brt.train --gin_file=configs/quickstart.gin --workdir=runs/lstm \\"
echo "      --gin.RecurrentCell.gate='\"lstm\"'"
