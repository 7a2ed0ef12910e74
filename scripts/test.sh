#!/usr/bin/env bash
# Environment, lint, types, tests: what a contributor runs, and CI too.  --slow runs everything.
set -euo pipefail
cd "$(dirname "$0")/.."
# Without scripts/malloc.sh: tests compile more than they compute, in processes that share a memory.
source scripts/environment.sh "[browser,data,dev,notebooks,report,storage,text,wandb]"
selected=(-m "not slow")
if [ "${1:-}" = "--slow" ]; then
    selected=()
    shift
fi
ruff check .
ruff format --check .
mypy
python -m pytest -n "${TEST_PROCESSES:-2}" --dist worksteal -q "${selected[@]}" "$@"
