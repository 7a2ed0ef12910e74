"""A sliding window over a rotary body: its cell before training, remat, refused settings.

What every token sees is a law of `llama_slide` and `llama_rec`; that neither cuts nor decoding
matter, with any memory, are laws of drawn models.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from architectures import VOCABULARY, WINDOW
from flax import nnx
from pretrained_architectures import GPT2_SIZES, LLAMA_SIZES
from tiny_models import OneKey, cast, quick_jit, randomised

from brt.models.block_recurrent.cell import RecurrentCell
from brt.models.block_recurrent.external_memory import ExternalMemory
from brt.pretrained.decoders.gpt2 import GPT2
from brt.pretrained.decoders.llama import Llama
from brt.pretrained.memories.backbone_memory import BackboneMemory, CellMemory
from brt.pretrained.sliding_model import SlidingLanguageModel

BODY = functools.partial(Llama, **LLAMA_SIZES)
CELL = functools.partial(CellMemory, cell=functools.partial(RecurrentCell, num_states=3))
EXTERNAL = functools.partial(
    BackboneMemory,
    memory=functools.partial(ExternalMemory, size=2 * WINDOW, neighbours=3),
    layer_index=1,
)


def model_of(window=WINDOW, cell=None, body=BODY):
    return SlidingLanguageModel(OneKey(), window=window, body=body, cell=cell)


def logits_of(model, tokens_BT):
    graph, params = nnx.split(model, nnx.Param)

    def read(params, tokens_BT):
        model = nnx.merge(graph, params)
        return model(tokens_BT, model.init_caches(len(tokens_BT)))[0]

    return np.asarray(quick_jit(read)(params, tokens_BT))


def test_a_cell_starts_at_zero():
    """P1, for the cell before training."""
    rng = np.random.default_rng(0)
    tokens_BT = jnp.asarray(rng.integers(0, VOCABULARY, (2, 3 * WINDOW)), jnp.int32)
    with jax.enable_x64(True):
        plain, with_cell = model_of(), model_of(cell=CELL)
        body = randomised(plain.body, 1)
        plain.body = with_cell.body = body
        plain, with_cell = cast(plain, "float64"), cast(with_cell, "float64")
        found = logits_of(plain, tokens_BT)
        again = logits_of(with_cell, tokens_BT)
    np.testing.assert_allclose(again, found, rtol=0, atol=1e-12 * np.abs(found).max())


@pytest.mark.slow
def test_remat_and_dropout_leave_the_states_as_they_are():
    def gradients(remat, dropout=0.2):
        body = functools.partial(BODY, num_layers=2, remat=remat, dropout=dropout)
        model = nnx.eval_shape(lambda: model_of(cell=CELL, body=body))
        model = randomised(model, 2)
        graph, params = nnx.split(model, nnx.Param)

        def loss(params):
            model = nnx.merge(graph, params)
            tokens_BT = jnp.arange(2 * 3 * WINDOW).reshape(2, -1) % VOCABULARY
            key = jax.random.key(1)
            y_BTD, caches, _ = model.stack(model.embed(tokens_BT), model.init_caches(2), key)
            return jnp.square(y_BTD).sum() + jnp.square(caches[-1].states_BSD).sum()

        return jax.tree.leaves(quick_jit(jax.grad(loss))(params))

    kept = gradients("none")
    for a, b in zip(gradients("layer"), kept, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-4 * np.abs(b).max())
    assert not all(map(np.allclose, gradients("none", 0.0), kept))


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (
            lambda: model_of(window=21),
            r"SlidingLanguageModel\.window = 21 must lie between 1 and 20",
        ),
        (lambda: model_of(window=0), r"window = 0"),
        (
            lambda: model_of(window=3, cell=EXTERNAL),
            r"ExternalMemory\.size = 8 must be a multiple of 3, .*SlidingLanguageModel\.window",
        ),
        (
            lambda: model_of(body=functools.partial(GPT2, **GPT2_SIZES)),
            r"a decoder with rotary positions, such as @Llama, and GPT2 is none",
        ),
        (
            lambda: SlidingLanguageModel(OneKey(), window=4, body=BODY, special_tokens=1),
            r"auxiliary_weight = 0",
        ),
        *(
            (
                lambda length=length: model_of().stack(np.zeros((1, length, 2)), ()),
                rf"{length} tokens .* whole blocks of SlidingLanguageModel\.window = {WINDOW}",
            )
            for length in (WINDOW - 1, WINDOW + 1)
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(build, said):
    with pytest.raises(ValueError, match=said):
        build()
