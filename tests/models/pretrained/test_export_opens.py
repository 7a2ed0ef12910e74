"""Plain transformers opens what brt writes, where it is installed."""

import importlib

import jax
import pytest
from flax import nnx
from paths import SCRIPTS
from tiny_models import parameters, randomised

from brt.export import export
from brt.models.pretrained.bodies.gpt2 import GPT2
from brt.models.pretrained.bodies.gpt_neox import GPTNeoX
from brt.models.pretrained.bodies.llama import Llama
from brt.models.pretrained.language_model import PretrainedLanguageModel

SIZES = dict(vocabulary_size=23, num_layers=2, width=16, num_heads=2, num_positions=12)
BODIES = {
    "gpt2": lambda rngs: GPT2(rngs, **SIZES),
    "gpt2 untied": lambda rngs: GPT2(
        rngs, **SIZES, tied=False, inverse_layer_scale=True, activation="relu", epsilon=1e-2
    ),
    "qwen2": lambda rngs: Llama(
        rngs, **SIZES, feed_forward_size=9, num_key_heads=1, biases="heads", tied=True
    ),
    "llama3": lambda rngs: Llama(
        rngs,
        **SIZES,
        feed_forward_size=9,
        head_size=6,
        biases="all",
        rotary_scaling=(8.0, 1.0, 4.0, 8),
        epsilon=1e-3,
    ),
    "neox": lambda rngs: GPTNeoX(rngs, **SIZES, rotary_share=0.5, parallel=False),
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
