r"""Compares runs of pretrained models: perplexity per word against FLOPs per token.

    python scripts/pretrained/compare_overlaps.py sweeps/pretrained/runs/* \
        --overlaps=0,2,4,8,16 [--split=test]

Runs without a memory are evaluated at every overlap, with segments that much shorter, so that
windows stay as long; the others as they were trained, with their memory kept and cleared. Runs
whose names differ in `-seedN` alone are one row; with `--baseline=NAME` each row has its difference
from that run's at overlap 0, seed by seed. Results are kept in overlaps_SPLIT.json of each run; the
same command continues after a stop.
"""

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import jax

from brt.evaluation.evaluator import Evaluator
from brt.model_folder import load_run
from brt.pretrained.language_model import PretrainedLanguageModel
from brt.reporting.drawing.rounding import confidence_interval
from brt.storage.replaced_files import replace_json
from brt.training.sharding import make_mesh

PERPLEXITY = "word_level_perplexity"


def evaluate(workdir: Path, bindings: Sequence[str]) -> dict[str, float]:
    experiment, params, step = load_run(str(workdir), bindings)
    mesh = make_mesh(devices=jax.devices()[:1])
    with jax.set_mesh(mesh):
        experiment.trainer.corpus.prepare(experiment.evaluation.split)
        store = experiment.open_store(experiment.evaluation.split)
        figures = Evaluator(experiment, store, mesh).run(params)
    return figures | {"step": step, "flops_per_token": experiment.model.flops_per_token()}


def overlaps_of(workdir: Path, overlaps: Sequence[int]) -> tuple[int, dict[int, list[str]]]:
    """Returns a run's step, and the bindings of each overlap that it is evaluated with."""
    experiment, _, step = load_run(str(workdir))
    model = experiment.model
    if not isinstance(model, PretrainedLanguageModel) or model.memories:
        return step, {getattr(model, "overlap", 0): []}
    length = experiment.trainer.segment_length + model.overlap  # of a window
    return step, {
        overlap: [
            f"PretrainedLanguageModel.overlap = {overlap}",
            f"Trainer.segment_length = {length - overlap}",
            f"Trainer.tokens_per_step = {experiment.trainer.rows * (length - overlap)}",
            "Trainer.segments_per_step = 1",
        ]
        for overlap in overlaps
        if overlap < length
    }


def figures_of(workdir: Path, overlaps: Sequence[int], split: str) -> dict[str, dict[str, float]]:
    name = f"overlaps_{split}.json"
    kept = workdir / name
    found = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    step, bound = overlaps_of(workdir, overlaps)
    for overlap, bindings in bound.items():
        if found.get(str(overlap), {}).get("step") != step:
            found[str(overlap)] = evaluate(workdir, [*bindings, f'Evaluation.split = "{split}"'])
            replace_json(workdir, name, found)
            print(f"{workdir.name}, overlap {overlap}: {found[str(overlap)]['loss']:.4f} nats")
    return {str(overlap): found[str(overlap)] for overlap in bound}


def spread(values: Sequence[float]) -> str:
    """Returns a mean with its 95 % interval over seeds (Student's t), as text."""
    if len(values) < 2:
        return f"{values[0]:.2f}"
    mean, half = confidence_interval(values)
    return f"{mean:.2f} ± {half:.2f}"


def difference(found: dict[str, dict[str, float]], beside: dict[str, dict[str, float]]) -> str:
    """Returns the differences of perplexities of equal seeds, as `spread`."""
    pairs = [found[seed][PERPLEXITY] - beside[seed][PERPLEXITY] for seed in found if seed in beside]
    return spread(pairs) if pairs and found is not beside else ""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("runs", nargs="+", metavar="RUN", type=Path)
    parser.add_argument("--overlaps", default="0", help="of runs without a memory, 0,2,4 say")
    parser.add_argument("--split", default="validation")
    parser.add_argument(
        "--baseline", help="name of runs without their -seedN: differences to these"
    )
    options = parser.parse_args(argv)
    overlaps = [int(number) for number in options.overlaps.split(",")]
    rows: dict[tuple[str, int], dict[str, dict[str, float]]] = {}
    for workdir in options.runs:
        name = re.sub(r"-seed\d+$", "", workdir.name)
        seed = workdir.name.removeprefix(name)
        for again, figures in figures_of(workdir, overlaps, options.split).items():
            rows.setdefault((name, int(again)), {})[seed] = figures
    beside = rows.get((options.baseline, 0))
    if options.baseline and beside is None:
        known = ", ".join(sorted({name for name, _ in rows}))
        raise SystemExit(f"--baseline={options.baseline} is none of the runs: {known}.")
    heads = ["model", "overlap", "seeds", "FLOPs/token", "perplexity per word", "memory cleared"]
    heads += [f"to {options.baseline}, same seed"] if beside else []
    print(f"\n| {' | '.join(heads)} |\n|---|{'---:|' * (len(heads) - 1)}")
    for (name, overlap), found in sorted(rows.items()):
        cells = [f"`{name}`", str(overlap), str(len(found))]
        cells.append(f"{next(iter(found.values()))['flops_per_token']:,.0f}")
        for key in (PERPLEXITY, f"cleared_{PERPLEXITY}"):
            values = [figures[key] for figures in found.values() if key in figures]
            cells.append(spread(values) if values else "")
        if beside:
            cells.append(difference(found, beside))
        print(f"| {' | '.join(cells)} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
