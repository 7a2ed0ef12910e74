"""A model with more symbols is the old model on the symbols that it had."""

import jax
import numpy as np
import pytest
from grow_vocabulary import grown
from marking import slow

from brt.experiment import Configuration

SWEEPS = "docs/results/sweeps"


def experiment(model, symbols):
    files = [model, f"{SWEEPS}/mqar_64.gin"]
    bindings = [f"vocabulary_size = {symbols}", f"Trainer.seed = {symbols}"]
    return Configuration(files, bindings).experiment()


def logits(built, params, tokens_BT):
    model = built.bind(params)
    return model(tokens_BT, model.init_caches(len(tokens_BT)))[0]


@pytest.mark.parametrize(
    "model",
    [
        "configs/task_models/recall_gated_delta.gin",
        slow(f"{SWEEPS}/mqar_txl.gin"),
        slow(f"{SWEEPS}/mqar_melodi.gin"),
    ],
)
def test_logits_of_the_old_symbols_stay(model):
    tokens_BT = jax.random.randint(jax.random.key(0), (2, 16), 0, 130)
    few = experiment(model, 130)
    params = few.init_params()
    logits_BTV = logits(few, params, tokens_BT)
    many = experiment(model, 150)
    more_BTV = logits(many, grown(params, many.init_params()), tokens_BT)
    np.testing.assert_allclose(more_BTV[..., :130], logits_BTV, rtol=1e-5, atol=1e-6)
    assert more_BTV.shape[-1] == 150 and np.abs(more_BTV[..., 130:]).min() > 0
