"""Compares what a model with memories gives at step 0 with its pretrained body alone.

    python scripts/pretrained/check_start.py \
        configs/pretrained_tasks/recall_gpt2_cell.gin+configs/tasks/recall_two_windows.gin \
        --gin='Pretrained.folder="models/recall-gpt2"'

Random tokens, a step's windows; prints the largest difference of logits of each window, and exits
with 1 if there is one. A Block-Recurrent cell begins so that there is none; other memories only in
a document's first window.
"""

import argparse
import sys
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from brt.experiment import Configuration
from brt.pretrained.language_model import PretrainedLanguageModel


def differences(config: str, bindings: Sequence[str], rows: int = 8) -> list[float]:
    """Returns the largest difference of logits of each window of a step."""
    experiment = Configuration([config], bindings).experiment()
    trainer = experiment.trainer
    params = experiment.init_state(given=experiment.model.given_parameters()).params
    model = experiment.bind(params)
    if not isinstance(model, PretrainedLanguageModel):
        raise SystemExit(f"{config}: Trainer.model is no @PretrainedLanguageModel.")
    alone = experiment.bind(params)
    assert isinstance(alone, PretrainedLanguageModel)
    alone.memories = nnx.List([])
    shape = trainer.segments_per_step, rows, trainer.segment_length
    tokens_KBT = np.random.default_rng(0).integers(0, model.vocabulary_size, shape)

    def read(model):
        graph, state = nnx.split(model)
        window = jax.jit(lambda state, *inputs: nnx.merge(graph, state)(*inputs))
        caches = model.init_caches(rows)
        found = []
        for tokens_BT in jnp.asarray(tokens_KBT, jnp.int32):
            logits_BTV, caches = window(state, tokens_BT, caches)
            found.append(np.asarray(logits_BTV))
        return found

    pairs = zip(read(model), read(alone), strict=True)
    return [float(np.abs(one - other).max()) for one, other in pairs]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("config", help="gin files, joined by +")
    parser.add_argument("--gin", action="append", default=[], metavar="NAME=VALUE")
    options = parser.parse_args(argv)
    found = differences(options.config, options.gin)
    for number, difference in enumerate(found, 1):
        print(f"window {number}: {difference}")
    return int(any(found))


if __name__ == "__main__":
    sys.exit(main())
