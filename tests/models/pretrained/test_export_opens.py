"""Plain transformers opens what brt writes, where it is installed."""

import importlib

import jax
import pytest
from flax import nnx
from paths import SCRIPTS
from tiny_models import parameters, randomised

from brt.export import export
from brt.models.pretrained.gpt2 import GPT2
from brt.models.pretrained.language_model import PretrainedLanguageModel

SIZES = dict(vocabulary_size=23, num_layers=2, width=16, num_heads=2, num_positions=12)
BODIES = {
    "gpt2": lambda rngs: GPT2(rngs, **SIZES),
    "gpt2 untied": lambda rngs: GPT2(
        rngs, **SIZES, tied=False, inverse_layer_scale=True, activation="relu", epsilon=1e-2
    ),
}


@pytest.mark.parametrize("name", BODIES)
def test_transformers_reads_the_same_logits_from_an_exported_folder(name, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(SCRIPTS)
    script = importlib.import_module("check_export")
    python = script.python_with_transformers()
    if python is None:
        pytest.skip("no torch and transformers here; BRT_TRANSFORMERS_PYTHON names a Python with")
    precision = jax.config.jax_default_matmul_precision
    model = randomised(PretrainedLanguageModel(nnx.Rngs(0), body=BODIES[name]), 1)
    folder = str(tmp_path / "exported")
    export(model, parameters(model), folder)
    try:
        jax.config.update("jax_default_matmul_precision", "highest")
        assert script.error(folder, python) < script.TOLERANCE
    finally:
        jax.config.update("jax_default_matmul_precision", precision)
