"""GPT-2 as a body: every layer agrees with plain loops, and with recordings where they are."""

import gpt2_numpy
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from paths import GOLDEN
from tiny_models import OneKey, cast, parameters, plain, quick_jit, randomised

from brt.models.counts import count_parameters
from brt.pretrained.backbone_layer import HIDDEN, Extra, Reads, Seen
from brt.pretrained.decoders.gpt2 import GPT2
from brt.token_ids import BEGIN

SIZES = dict(
    vocabulary_size=11, num_layers=3, width=12, num_heads=3, feed_forward_size=10, num_positions=9
)
VARIANTS = {
    "published": {},
    "inverse layers": dict(inverse_layer_scale=True, epsilon=1e-2),
    "not scaled": dict(scale_scores=False),
    "relu, untied": dict(activation="relu", tied=False, begin_id=3),
    "exact gelu": dict(activation="gelu", feed_forward_size=None),
}
SMALL = dict(vocabulary_size=50257, num_layers=12, width=768, num_heads=12, num_positions=1024)
ROWS, TOKENS = 2, 5


class TwoVectors(Reads):
    """Two vectors among the inputs of the second layer, of which the second row has one."""

    def __init__(self, vectors_BMD):
        self.vectors_BMD = vectors_BMD

    def extras(self, layer):
        present_BM = jnp.array([[True, True], [False, True]])
        return [Extra(self.vectors_BMD, present_BM)] if layer == 1 else []

    def added(self, layer, heads):
        return (2 * heads.normed_BTD if layer == 2 else None), ()


def body_of(**settings):
    return randomised(nnx.eval_shape(lambda: GPT2(OneKey(), **SIZES | settings)), 1)


def settings_of(body, **settings):
    known = gpt2_numpy.Settings.__dataclass_fields__
    said = {name: value for name, value in settings.items() if name in known}
    return gpt2_numpy.Settings(body.sizes.num_heads, **{"begin_id": body.settings.begin_id, **said})


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_layer_follows_from_the_equations(variant):
    rng = np.random.default_rng(2)
    tokens_BT = rng.integers(0, SIZES["vocabulary_size"], (ROWS, TOKENS))
    tokens_BT[:, 0] = BEGIN
    with jax.enable_x64(True):
        body = cast(body_of(**VARIANTS[variant]), "float64")
        vectors_BMD = rng.normal(size=(ROWS, 2, 12))
        graph, params = nnx.split(body, nnx.Param)
        positions_BT = jnp.broadcast_to(jnp.arange(TOKENS), (ROWS, TOKENS))
        table_1TT = jnp.where(np.tri(TOKENS, dtype=bool), 0.0, HIDDEN)[None]

        @quick_jit
        def read(params, tokens_BT):
            body = nnx.merge(graph, params)
            found = body.read(
                body.embed(tokens_BT),
                positions_BT,
                lambda _, keys: Seen(keys, positions_BT, table_1TT),
                TwoVectors(jnp.asarray(vectors_BMD)),
            )
            return found.outputs, body.logits(found.outputs[-1])

        outputs, logits_BTV = read(params, tokens_BT)
    ours = plain(parameters(body))
    settings = settings_of(body, **VARIANTS[variant])
    for row in range(ROWS):
        words = [gpt2_numpy.embedded(ours, token, settings) for token in tokens_BT[row]]
        extras = {2: [vectors_BMD[0, 0], vectors_BMD[0, 1]] if row == 0 else [vectors_BMD[1, 1]]}
        expected = gpt2_numpy.window(ours, words, settings, extras, {3: lambda x: 2 * x})
        for found, layer in zip(outputs, expected, strict=True):
            np.testing.assert_allclose(found[row], layer, rtol=0, atol=1e-9 * np.abs(layer).max())
        logits = gpt2_numpy.logits(ours, expected[-1])
        np.testing.assert_allclose(
            logits_BTV[row], logits, rtol=0, atol=1e-9 * np.abs(logits).max()
        )


def test_the_published_size_has_the_published_number_of_parameters():
    counts = count_parameters(nnx.eval_shape(lambda: GPT2(OneKey(), **SMALL)))
    assert sum(counts) == 124_439_808
    assert counts.embedding == 50257 * 768 + 1024 * 768


def outputs_and_gradients(body):
    """Of a window read with dropout, and the sum of squares of its outputs."""
    graph, params = nnx.split(body, nnx.Param)
    tokens_BT = jnp.arange(10).reshape(2, 5)
    positions_BT = jnp.broadcast_to(jnp.arange(5), (2, 5))
    table_1TT = jnp.where(np.tri(5, dtype=bool), 0.0, HIDDEN)[None]

    def seen(_, keys):
        return Seen(keys, positions_BT, table_1TT)

    def loss(params):
        body = nnx.merge(graph, params)
        found = body.read(body.embed(tokens_BT), positions_BT, seen, key=jax.random.key(4))
        return jnp.square(found.outputs[-1]).sum(), found.outputs[-1]

    (_, y_BTD), grads = quick_jit(jax.value_and_grad(loss, has_aux=True))(params)
    return y_BTD, jax.tree.leaves(grads)


@pytest.mark.slow
def test_gradients_do_not_depend_on_what_is_computed_again():
    expected, kept = outputs_and_gradients(body_of(dropout=0.3))
    found, again = outputs_and_gradients(body_of(dropout=0.3, remat="layer"))
    np.testing.assert_array_equal(found, expected)
    for a, b in zip(again, kept, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-4 * np.abs(b).max())
    without, _ = outputs_and_gradients(body_of())
    assert not np.allclose(without, expected)


RECORDINGS = [
    pytest.param(file, id=file.stem)
    for kind in ("gpt2", "arpt_gpt2", "rmt_gpt2")
    for file in sorted((GOLDEN / "pretrained").glob(f"{kind}*.npz"))
]
ABSENT = pytest.param("none", marks=pytest.mark.skip(reason=f"no recordings under {GOLDEN}"))


@pytest.mark.slow
@pytest.mark.parametrize("file", RECORDINGS or [ABSENT])
def test_every_recording_is_reproduced(check, file):
    """Of transformers, of pooled recurrence, and of the released memory tokens, around GPT-2."""
    assert check(file) == 0


@pytest.mark.slow
def test_a_wrong_number_in_a_recording_fails(check, tmp_path):
    if not RECORDINGS:
        pytest.skip(f"no recordings under {GOLDEN}")
    with np.load(GOLDEN / "pretrained" / "gpt2.npz", allow_pickle=False) as archive:
        recorded = dict(archive)
    (tmp_path / "models").symlink_to(GOLDEN / "pretrained" / "models")
    recorded["hidden_states/2"][0, 3, 1] += 1e-3
    assert check(recorded) == 1
