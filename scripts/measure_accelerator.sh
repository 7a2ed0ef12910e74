#!/usr/bin/env bash
# Measures the GPU or TPU that JAX finds, in at most ten minutes a call; the same command continues
# where the last one stopped: training steps of the systems of Table 1 and of a gated delta memory at
# the published sizes, by part and by form of attention, small ones in float32 against the CPU, and decoding.
#   bash scripts/measure_accelerator.sh
#   bash scripts/measure_accelerator.sh --minutes=5 --systems=pg19_slide_13l,pg19_rec_fixed_skip
# Writes accelerator.json and accelerator.md (--figures=FILE.json: FILE.json and FILE.md). Uses the
# environment in .venv, or the Python named by PYTHON. On a CPU everything is tiny.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/malloc.sh
python=${PYTHON:-.venv/bin/python}
if ! "$python" -c 'import jax' 2>/dev/null; then
    echo "$python has no JAX: make .venv with pip install -e \".[gpu]\" or \".[tpu]\", or set PYTHON." >&2
    exit 1
fi
PYTHONPATH=scripts${PYTHONPATH:+:$PYTHONPATH} exec "$python" -m accelerator.measure "$@"
