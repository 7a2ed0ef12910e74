#!/usr/bin/env bash
# Environment, lint, types, tests: what a contributor runs, and CI too. --slow runs everything,
# --smoke about a minute of tests: a model, a step, decoding, an evaluation, the tour. Further arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
# Without scripts/malloc.sh: tests compile more than they compute, in processes that share a memory.
extras="[browser,data,dev,docs,notebooks,report,storage,tables,text,topics,wandb]"
selected=(-m "not slow")
case ${1:-} in
    --slow) selected=(); shift ;;
    --smoke)
        extras="[dev]"
        equations=tests/laws/test_references.py::test_every_logit_follows_from_the_equations
        law=tests/laws/test_laws.py::test_
        selected+=(
            tests/models/block_recurrent/test_gates.py tests/models/block_recurrent/test_recurrent_cell.py tests/training/test_schedules.py
            tests/generation/test_sampling.py tests/evaluation/test_perplexity.py tests/data/streams
            tests/laws/test_import_directions.py tests/laws/test_tour.py
            "${equations}[rec_fixed_skip]" "${equations}[rec_lstm_dual]"
            "${law}decoding_token_by_token_is_the_segment_pass[rec_lstm_dual-float64-1e-09]"
            "${law}rows_decode_at_their_own_pace_and_end_mid_block[rec_lstm_dual]"
        )
        shift
        ;;
esac
source scripts/environment.sh "$extras"
ruff check .
ruff format --check .
mypy
python -m pytest -n "${TEST_PROCESSES:-2}" --dist worksteal -q "${selected[@]}" "$@"
