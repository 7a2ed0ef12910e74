"""The Recurrent Memory Transformer: masks, the carried memory, and refused settings.

What it computes and how it decodes are laws: of `rmt`, `rmt_txl`, `rmt_reads_cache`, `memtr*`.
"""

import functools

import jax
import numpy as np
import pytest
from flax import nnx
from tiny_models import OneKey, cast, quick_jit, randomised, wide_types  # noqa: F401

from brt.data.vocabularies.base import BEGIN
from brt.models.block_recurrent.model import BlockRecurrentTransformer
from brt.models.caches import reset_rows
from brt.models.memory_tokens.model import RecurrentMemoryTransformer
from brt.models.recurrent_networks import LSTM
from brt.models.transformer_xl.memory_tokens import segment_mask, visible_positions
from brt.models.transformer_xl.model import TransformerXL

B, T, V, SEGMENTS = 2, 6, 17, 4
OF_RMT = (
    *("num_memory", "memory_at_end", "read_memory_from_cache", "initial_rows"),
    *("auxiliary_weight", "allow_long_memory"),
)
SIZES = dict(
    vocabulary_size=V,
    num_layers=2,
    width=12,
    num_heads=2,
    head_size=4,
    feed_forward_size=10,
    memory_length=0,
)
MODELS = {
    "rmt": dict(num_memory=3),
    "cache": dict(num_memory=2, memory_length=5),
    "long cache": dict(num_memory=2, memory_length=24, read_memory_from_cache=True),
    "start": dict(num_memory=3, memory_at_end=False),
    "start, cache": dict(num_memory=3, memory_at_end=False, memory_length=4),
}
every_model = pytest.mark.parametrize("name", MODELS)


def make(rngs, **settings):
    """Memory tokens around a Transformer-XL; settings of either."""
    own = {name: settings.pop(name) for name in OF_RMT if name in settings}
    body = functools.partial(TransformerXL, **SIZES | settings)
    return RecurrentMemoryTransformer(rngs, body=body, **own)


def built(seed=1, dtype="float64", **settings):
    """A model of random parameters for segments of T tokens."""
    abstract = nnx.eval_shape(lambda: make(OneKey(), **settings).for_segments(T))
    return cast(randomised(abstract, seed), dtype)


@functools.cache
def model(name):
    with jax.enable_x64(True):
        return built(**MODELS[name])


@functools.cache
def tokens():
    segments = np.random.default_rng(0).integers(0, V, (SEGMENTS, B, T)).astype(np.int32)
    segments[0, :, 0] = segments[2, 1, 0] = BEGIN  # row 1 begins again in segment 2
    return segments


STARTS = np.zeros((SEGMENTS, B), bool)
STARTS[0] = STARTS[2, 1] = True


@functools.partial(quick_jit, static_argnums=0)
def read_all(graph, params, tokens_NBT, starts_NB):
    model = nnx.merge(graph, params)
    empty = model.init_caches(tokens_NBT.shape[1])

    def segment(caches, inputs):
        tokens_BT, starts_B = inputs
        logits_BTV, caches = model(tokens_BT, reset_rows(caches, empty, starts_B))
        return caches, (logits_BTV, caches)

    return jax.lax.scan(segment, empty, (tokens_NBT, starts_NB))[1]


def fold(model, tokens_NBT, starts_NB=STARTS):
    """Logits (N, B, T, V) and the caches after every segment."""
    return read_all(*nnx.split(model), tokens_NBT, starts_NB)


# The mask.


def test_visibility_of_two_memory_tokens_around_three_tokens():
    # Columns and rows: read, read, token, token, token, write, write. RMT, section 3.
    pattern = """
        X X . . . . .
        X X . . . . .
        X X X . . . .
        X X X X . . .
        X X X X X . .
        X X X X X X X
        X X X X X X X
    """
    expected = np.array([[c == "X" for c in line.split()] for line in pattern.split("\n")[1:-1]])
    np.testing.assert_array_equal(segment_mask(2, 3), expected)
    np.testing.assert_array_equal(segment_mask(2, 3, memory_at_end=False), expected[:5, :5])


# The carried memory.


@pytest.mark.parametrize("name", ["rmt", "cache"])
def test_other_cuts_change_logits_only_after_the_first(name):
    # Memory is updated at the ends of segments only, so law L1 holds up to the first cut. After it
    # a token reads the memory instead of the earlier tokens, exactly like a segment that starts
    # with the caches from the cut.
    document = tokens()[:2].swapaxes(0, 1).reshape(1, B, 2 * T)
    begins = np.ones((1, B), bool)
    (whole,), _ = fold(model(name).for_segments(2 * T), document, begins)
    parts, caches = fold(model(name), tokens()[:2], STARTS[:2])
    np.testing.assert_allclose(whole[:, :T], parts[0], rtol=0, atol=1e-12)
    assert (np.abs(np.asarray(whole[:, T:] - parts[1])).max(axis=-1) > 1e-3).all()
    left = jax.tree.map(lambda x: x[0], caches)
    again, _ = quick_jit(model(name))(tokens()[1], left)
    np.testing.assert_allclose(again, parts[1], rtol=0, atol=1e-12)


# The auxiliary loss.


@pytest.mark.parametrize("cutoffs", [(), (5, 11)])
def test_the_auxiliary_loss_is_of_one_more_memory_entry(cutoffs):
    settings = dict(num_memory=3, cutoffs=cutoffs, div_val=2 if cutoffs else 1)
    added = built(**settings, auxiliary_weight=0.01)
    assert added.body.embedding.edges[-1] == V + 1 and added.vocabulary_size == V

    @quick_jit
    def read(tokens_BT):
        _, caches, metrics = added.stack(added.embed(tokens_BT), added.init_caches(B))
        return added.logits(caches[-1].memory_BSD), metrics["added_nats"]

    logits_BSV, added_nats = map(np.asarray, read(tokens()[0]))
    log_sum = np.log(np.exp(logits_BSV).sum(axis=-1))
    expected = 0.01 * (log_sum - logits_BSV[..., V]).mean()
    assert added_nats == pytest.approx(expected, rel=1e-9)


# What it costs.


@every_model
def test_operations_are_counted_as_the_mask_has_them(name):
    found = model(name)
    M, S = found.body.memory_length, found.num_memory
    X = T + (2 * S if found.memory_at_end else S)
    mask = np.asarray(segment_mask(S, T, found.memory_at_end))
    position = np.arange(X)
    is_memory = (position < S) | (position >= S + T)
    filled_BM = np.ones((1, M), bool)
    full = visible_positions(mask, is_memory, filled_BM, found.read_memory_from_cache)
    A, D, F, layers = 8, 12, 10, 2
    per_position = 2 * (4 * D * A + 2 * D * F)  # queries, keys, values, output; the MLP
    of_cache = 2 * 2 * D * A * M  # its keys and values
    pairs = 3 * 2 * A * int(np.asarray(full).sum())  # by content, by position, of values
    expected = 2 * V * D + layers * (X * per_position + of_cache + pairs) / T
    assert found.flops_per_token() == pytest.approx(expected, rel=1e-12)


# Bad input.


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (dict(num_memory=T), r"num_memory = 6 .* allow_long_memory"),
        (dict(num_memory=T + 3), r"num_memory = 9 .* whole segment of 6"),
        (dict(num_memory=2, encoding="absolute"), "TransformerXL.encoding"),
        (dict(num_memory=2, same_length=True, memory_length=4), "same_length = False"),
    ],
)
def test_settings_that_cannot_be_are_named(settings, named):
    with pytest.raises(ValueError, match=named):
        built(**settings)


def test_a_memory_as_long_as_the_segment_is_allowed_on_request():
    assert built(num_memory=T, allow_long_memory=True).num_memory == T


# Around other bodies.


def around_blocks(num_memory=2, window=4, kind=BlockRecurrentTransformer, **settings):
    """Memory tokens around a stack of blocks; settings of the memory."""
    sizes = {name: size for name, size in SIZES.items() if name != "memory_length"}
    body = functools.partial(kind, window=window, **sizes)
    return RecurrentMemoryTransformer(OneKey(), num_memory=num_memory, body=body, **settings)


def test_a_body_that_is_none_is_refused_by_name():
    def network(rngs, special_tokens):
        return LSTM(rngs, vocabulary_size=V, width=12, num_layers=1, hidden_size=8)

    with pytest.raises(ValueError, match=r"RecurrentMemoryTransformer\.body .* and LSTM is none\."):
        RecurrentMemoryTransformer(OneKey(), num_memory=2, body=network)


@pytest.mark.parametrize("weight", [0.0, 0.1])
def test_a_stack_has_one_more_entry_for_the_auxiliary_loss(weight):
    model = nnx.eval_shape(lambda: around_blocks(auxiliary_weight=weight))
    assert model.vocabulary_size == V
    assert model.body.embedding_VD.shape == (V + (weight > 0), SIZES["width"])
