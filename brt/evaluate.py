"""Evaluates a run on a whole split: every document once, from its start.

    python -m brt.evaluate --workdir=runs/quickstart --gin.Evaluation.split='"test"'

Gin files and bindings are read after those of the run.
"""

import json
import os

import jax
from absl import flags

from brt import command_line
from brt.evaluation.evaluator import Evaluator
from brt.evaluation.perplexity import white_space_caveat
from brt.experiment import Experiment, load_params
from brt.training.sharding import make_mesh

FLAGS = flags.FLAGS

COUNTS = ("documents", "tokens", "words", "characters", "bytes")
"""Of the split, from its store's manifest."""


def main():
    if not FLAGS.workdir:
        raise ValueError("--workdir is missing: name the run folder to evaluate.")
    own = os.path.join(FLAGS.workdir, "config.gin")
    if not os.path.isfile(own):
        raise FileNotFoundError(f"{FLAGS.workdir} is not a run folder: it has no config.gin.")
    FLAGS.gin_file = [own, *FLAGS.gin_file]
    command_line.start()
    experiment = Experiment.from_gin()
    mesh = make_mesh(*experiment.trainer.mesh)
    with jax.set_mesh(mesh):
        evaluate(experiment, mesh, FLAGS.workdir)


def evaluate(experiment, mesh, workdir):
    """Evaluates the newest checkpoint, prints a table and writes it to the run folder."""
    split = experiment.trainer.evaluation.split
    experiment.trainer.corpus.prepare(split)
    store = experiment.open_store(split)
    evaluator = Evaluator(experiment, store, mesh)
    state, _ = load_params(workdir, experiment.abstract_state(mesh))
    first = jax.process_index() == 0
    scalars = evaluator.run(state.params, f"evaluating {split}, segments" if first else None)
    if not first:
        return
    counts = {name: store.manifest[name] for name in COUNTS}
    vocabulary = experiment.trainer.corpus.vocabulary
    caveat = white_space_caveat(vocabulary, store.tokens(0, 0, SAMPLE))
    print(f"\n{workdir} at step {int(state.step):,}, {split}, every document once")
    for name, value in {**counts, **scalars}.items():
        text = f"{value:,.0f}" if float(value).is_integer() else f"{value:,.6f}"
        print(f"  {name:<32} {text:>16}")
    print(caveat)
    path = os.path.join(workdir, f"evaluation_{split}.json")
    figures = {"step": int(state.step), "split": split, **counts, **scalars, "caveat": caveat}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(figures, file, indent=2)
    print(f"Written to {path}")


SAMPLE = 4096
"""Tokens of the split that its vocabulary's white space is probed with."""


if __name__ == "__main__":
    command_line.run(main)
