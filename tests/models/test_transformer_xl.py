"""Transformer-XL of its own paper: what it remembers, what it sees, and where laws are bent."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from architectures import SEGMENT, VOCABULARY, WITHOUT_WINDOW
from flax import nnx
from tiny_models import OneKey, cast, parameters, quick_jit, randomised, read_segment, wide_types  # noqa: F401

from brt.models.counts import count_parameters
from brt.models.layers.initializers import parameter
from brt.models.transformer_xl.hidden_memory import HiddenMemory
from brt.models.transformer_xl.model import TransformerXL
from brt.token_ids import BEGIN

ROWS, NONE = 2, np.zeros(2, bool)
WIDTHS = WITHOUT_WINDOW | dict(num_layers=2)


def txl(**settings):
    model = nnx.eval_shape(lambda: TransformerXL(OneKey(), **WIDTHS, **settings))
    return cast(randomised(model, 1), "float64").for_segments(SEGMENT)


def tokens(length):
    drawn = np.random.default_rng(3).integers(0, VOCABULARY, (ROWS, length))
    drawn[:, 0] = BEGIN
    return drawn


@functools.partial(quick_jit, static_argnums=0)
def _stack(graph, params, x_BTD, caches):
    return nnx.merge(graph, params).stack(x_BTD, caches)


def stack(model, x_BTD, caches):
    return _stack(*nnx.split(model), x_BTD, caches)


def read(model, tokens_BT, lengths):
    """Logits of segments of these lengths, and the caches after them."""
    caches, found = model.init_caches(ROWS), []
    for part_BT in np.split(tokens_BT, np.cumsum(lengths)[:-1], axis=1):
        logits_BTV, caches = read_segment(model, jnp.asarray(part_BT), NONE, caches)
        found.append(np.asarray(logits_BTV))
    return np.concatenate(found, axis=1), caches


def test_no_gradient_reaches_what_is_remembered():
    model = txl(memory_length=5)
    x_BTD = model.embed(tokens(2 * SEGMENT))

    def second(x_BTD):
        _, caches, _ = model.stack(x_BTD[:, :SEGMENT], model.init_caches(ROWS))
        return model.stack(x_BTD[:, SEGMENT:], caches)[0].sum()

    moved = np.abs(quick_jit(jax.grad(second))(x_BTD)).max(axis=(0, 2)) > 0
    np.testing.assert_array_equal(moved, np.arange(2 * SEGMENT) >= SEGMENT)

    def remembered(x_BTD):
        return model.stack(x_BTD, model.init_caches(ROWS))[1][-1].x_BMD.sum()

    assert not np.any(quick_jit(jax.grad(remembered))(x_BTD[:, :SEGMENT]))

    def of_cache(caches):
        return model.stack(x_BTD[:, SEGMENT:], caches)[0].sum()

    _, caches, _ = stack(model, x_BTD[:, :SEGMENT], model.init_caches(ROWS))
    grads = quick_jit(jax.grad(of_cache, allow_int=True))(caches)
    assert not any(np.any(cache.x_BMD) for cache in grads)


def test_without_same_length_a_cut_changes_the_keys_seen():
    M, length = 6, 2 * SEGMENT
    model, ids = txl(memory_length=M), tokens(length)
    whole, _ = read(model, ids, [length])
    for cut in (3, SEGMENT):
        parts, _ = read(model, ids, [cut, length - cut])
        # Up to the cut, and on while memory and segment reach back to the start: the same.
        same = slice(0, length if cut <= M else cut)
        np.testing.assert_allclose(parts[:, same], whole[:, same], rtol=0, atol=1e-9)
        # Behind a cut the query at position t sees M + t keys and itself, not all before it.
        if cut > M:
            assert np.abs(parts[:, cut:] - whole[:, cut:]).max(axis=(0, 2)).min() > 1e-6
            x_BTD, caches = model.embed(ids), model.init_caches(ROWS)
            visible = model.visible(caches, length)
            position = np.arange(length)
            forgotten = (position[:, None] >= cut) & (position < cut - M)
            visible &= ~np.concatenate([np.zeros((length, M), bool), forgotten], axis=1)
            contents = model.contents(caches)
            x_BTD, _ = quick_jit(lambda *given: model.forward(*given))(x_BTD, contents, visible)
            np.testing.assert_allclose(parts, model.logits(x_BTD), rtol=0, atol=1e-9)


@pytest.mark.parametrize("settings", [dict(encoding="absolute"), dict(encoding="learned")])
def test_absolute_positions_move_with_cuts(settings):
    rows = dict(position_rows=3) if settings["encoding"] == "learned" else {}
    model = txl(memory_length=SEGMENT, **settings, **rows)
    ids = tokens(2 * SEGMENT)
    whole, _ = read(model, ids, [2 * SEGMENT])
    parts, _ = read(model, ids, [SEGMENT, SEGMENT])
    assert np.abs(parts - whole)[:, :SEGMENT].max() > 1e-3
    if settings["encoding"] == "absolute":
        return
    # Farther than its table a position changes nothing: there a longer segment reads the same.
    np.testing.assert_array_equal(
        model.layers[0].add_position_vectors(jnp.zeros((1, 5, 12)), jnp.arange(6, 1, -1))[0, 0],
        model.layers[0].places_RD[0],
    )


@pytest.mark.parametrize(
    "settings",
    [
        dict(memory_length=0, remat="layer"),
        dict(memory_length=3, encoding="absolute", clamp_length=2),
        dict(memory_length=11, encoding="learned", position_rows=5, norm="pre"),
    ],
    ids=lambda settings: settings.get("encoding", "without recurrence"),
)
def test_other_models_decode_as_they_read(settings):
    model, ids = txl(**settings), tokens(2 * SEGMENT + 3)
    expected, caches = read(model, ids[:, : 2 * SEGMENT], [SEGMENT, SEGMENT])
    decoding = model.begin_decoding(model.init_caches(ROWS))
    split = nnx.split(model)
    decode = quick_jit(lambda params, *given: nnx.merge(split[0], params).decode(*given))
    for t in range(2 * SEGMENT):
        logits_BV, decoding = decode(split[1], ids[:, t], decoding)
        np.testing.assert_allclose(logits_BV, expected[:, t], rtol=0, atol=1e-9)
    close = functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-9)
    jax.tree.map(close, model.end_decoding(decoding), caches)


@pytest.mark.parametrize(
    ("memory_length", "same_length", "reach"),
    [(0, False, SEGMENT - 1), (5, False, 20), (SEGMENT, False, 23), (6, True, 10)],
)
def test_the_reach_is_that_of_gradients_across_memories(memory_length, same_length, reach):
    # Values do what gradients may not: the first token moved, does the last one notice?
    model = txl(memory_length=memory_length, same_length=same_length)
    assert model.windows_reach() == reach
    length = 5 * SEGMENT
    ids = np.repeat(tokens(length)[:1], ROWS, axis=0)
    for back, sees in ((reach, True), (reach + 1, False)):
        ids[1] = ids[0]
        ids[1, length - 1 - back] = (ids[0, length - 1 - back] + 1) % VOCABULARY
        found, _ = read(model, ids, [SEGMENT] * 5)
        assert (np.abs(found[1, -1] - found[0, -1]).max() > 0) == sees


def test_a_longer_memory_at_evaluation_keeps_the_parameters():
    short, long = (txl(memory_length=M, same_length=True, clamp_length=5) for M in (4, 19))
    jax.tree.map(np.testing.assert_array_equal, parameters(short), parameters(long))
    ids = tokens(3 * SEGMENT)
    first, _ = read(short, ids, [SEGMENT] * 3)
    second, _ = read(long, ids, [SEGMENT] * 3)
    np.testing.assert_allclose(first[:, :4], second[:, :4], rtol=0, atol=1e-9)
    assert np.abs(first[:, 4:] - second[:, 4:]).max(axis=(0, 2)).min() > 0


def test_parameters_begin_as_published():
    settings = dict(WIDTHS, width=128, num_heads=4, head_size=32, feed_forward_size=256)
    settings |= dict(vocabulary_size=900, cutoffs=(300,), div_val=2, memory_length=4, num_layers=2)
    model = TransformerXL(nnx.Rngs(0), **settings)
    for path, leaf in nnx.to_flat_state(nnx.state(model, nnx.Param)):
        name, x = path[-1], np.asarray(leaf[...])
        if "bias" in name and not name.endswith("HK"):
            assert not x.any(), path
            continue
        std = 0.01 if "projection" in name else 0.02
        mean = 1.0 if name == "scale_D" else 0.0
        assert x.mean() == pytest.approx(mean, abs=5 * std / x.size**0.5), path
        assert x.std() == pytest.approx(std, rel=5 / x.size**0.5), path


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(memory_length=0, same_length=True), "same_length"),
        (dict(memory_length=4, encoding="shaw"), "position_rows"),
        (dict(memory_length=4, width=11), "width"),
        (dict(memory_length=4, cutoffs=(9, 4)), "cutoffs"),
    ],
)
def test_settings_that_contradict_one_another_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        TransformerXL(OneKey(), **(WIDTHS | settings))


class Scaled(HiddenMemory):
    """Remembers inputs times something learned."""

    name = "scaled"

    def __init__(self, rngs, sizes, length):
        super().__init__(rngs, sizes, length)
        self.scale_D = parameter(rngs, jax.nn.initializers.ones, sizes.width)

    def read(self, cache, dtype):
        vectors = super().read(cache, dtype)
        return vectors._replace(x_BMD=vectors.x_BMD * self.scale_D[...])


def test_a_learning_memorys_gradient_is_monitored():
    plain, learning = txl(memory_length=4), txl(memory_length=4, memory=Scaled)
    assert plain.gradient_metrics(parameters(plain)) == {}
    grads = parameters(learning)
    found = learning.gradient_metrics(grads)
    assert set(found) == {"layer0/scaled_grad_norm", "layer1/scaled_grad_norm"}
    for i, memory in enumerate(learning.memories):
        norm = np.sqrt(np.square(memory.scale_D[...]).sum())
        assert float(found[f"layer{i}/scaled_grad_norm"]) == pytest.approx(norm)
    added = count_parameters(learning).recurrence - count_parameters(plain).recurrence
    assert added == count_parameters(learning).recurrence == 2 * 12
