"""The laws every architecture keeps: cuts, decoding, rows, causality, gradient boundaries.

All on one ragged corpus with documents of every awkward length, starting mid-stream, in
float64, where only a mistake makes a difference; and the first two in float32 as well.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from architectures import (
    ARCHITECTURES,
    COMBINED,
    QUICK_PRETRAINED,
    RELATED,
    WINDOW,
    kinds,
    random_model,
)
from flax import nnx
from ragged import Ragged, ragged_segments
from tiny_models import largest, leaves_close, wide_types  # noqa: F401

from brt.data.vocabularies.base import BEGIN
from brt.models.caches import LayerCache, clear_state, cleared, select_rows, with_state

QUICK = (*QUICK_PRETRAINED, "memorizing_dense")
"""Architectures that decode in a way of their own, though their caches occur in others."""
ROUNDED = ("rec_lstm_dual", "melodi", "feedback_fixed_skip", "txl_shaw", "rmt", "lstm")
# By module, so that all tests of one architecture run one after another, on the same programs.
by_architecture = functools.partial(pytest.mark.parametrize, "name", scope="module")
every_architecture = by_architecture(kinds(QUICK, COMBINED))
unrelated_architectures = by_architecture(kinds(QUICK, RELATED))


def in_types(slow=()):
    """In float32, where only rounding is new, a few."""
    return [
        pytest.param(*each.values, *form, marks=each.marks)
        for *form, marked in (("float64", 1e-9, slow), ("float32", 2e-5, (*slow, *ROUNDED[2:])))
        for each in kinds(QUICK, marked)
        if form[0] == "float64" or each.values[0] in ROUNDED
    ]


every_type = pytest.mark.parametrize(
    ("name", "dtype", "tolerance"), in_types(COMBINED), scope="module"
)
# The others see a number of keys that depends on the cuts; by how much, they say themselves.
cuttable = [each for each in in_types(RELATED) if ARCHITECTURES[each.values[0]].cut_invariant]
every_cuttable = pytest.mark.parametrize(("name", "dtype", "tolerance"), cuttable, scope="module")
ROWS = 3
ALL, NONE = np.ones(ROWS, bool), np.zeros(ROWS, bool)


class Tiny:
    """A tiny model with its forward passes compiled, and its empty caches in both forms.

    sizes: its window, the tokens of a segment, and its vocabulary.
    """

    def __init__(self, name, dtype):
        entry = ARCHITECTURES[name]
        self.sizes = entry.window, entry.segment, entry.vocabulary
        self.model = random_model(name, dtype=dtype)
        graph, params = nnx.split(self.model, nnx.Param)

        def compiled(function):
            call = jax.jit(lambda params, *arrays: function(nnx.merge(graph, params), *arrays))
            return functools.partial(call, params)

        self.segment, self.token = compiled(_segment), compiled(_token)
        self.part = compiled(lambda model, *arrays: model.read_part(*arrays))
        self.begin = compiled(lambda model, caches: model.begin_decoding(caches))
        self.end = compiled(lambda model, caches: model.end_decoding(caches))
        self.caches = functools.cache(jax.jit(self.model.init_caches, static_argnums=0))
        self.empty = self.caches(ROWS)

    @functools.cached_property
    def decoding(self):
        return self.begin(self.empty)


two_types = functools.lru_cache(maxsize=4)(Tiny)


def tiny(name, dtype="float64"):
    return two_types(name, dtype)


def _segment(model, tokens_BT, caches, starts_B):
    return model(tokens_BT, select_rows(starts_B, model.init_caches(len(starts_B)), caches))


def _token(model, tokens_B, caches, starts_B, reads_B):
    empty = model.begin_decoding(model.init_caches(len(starts_B)))
    return model.decode(tokens_B, select_rows(starts_B, empty, caches), reads_B)


def segment_pass(tiny, tokens, starts):
    """Folds a model over segments (steps, B, N); returns logits (B, steps * N, V) and caches."""
    caches, logits = tiny.caches(tokens.shape[1]), []
    for tokens_BT, starts_B in zip(tokens, starts, strict=True):
        logits_BTV, caches = tiny.segment(tokens_BT, caches, starts_B)
        logits.append(np.asarray(logits_BTV))
    return np.concatenate(logits, axis=1), caches


def drawn_segments(tiny, segments, seed):
    """Random tokens, (segments, ROWS, tokens of a segment)."""
    _, length, vocabulary = tiny.sizes
    rng = np.random.default_rng(seed)
    return rng.integers(0, vocabulary, (segments, ROWS, length)).astype(np.int32)


def recut(ragged, length):
    """The same rows in segments of another length, a divisor of theirs."""
    steps, rows, whole = ragged.tokens.shape
    parts = whole // length
    tokens = ragged.tokens.reshape(steps, rows, parts, length).swapaxes(1, 2)
    starts = np.zeros((steps, parts, rows), bool)
    starts[:, 0] = ragged.starts
    return tokens.reshape(-1, rows, length), starts.reshape(-1, rows)


@every_cuttable
def test_cutting_at_block_boundaries_changes_nothing(name, dtype, tolerance):
    model = tiny(name, dtype)
    W, N, V = model.sizes
    # Four blocks or two; and two or one, in the type whose programs are compiled in any case.
    longer, shorter = (2 * N, N) if dtype == "float64" else (N, W)
    ragged = ragged_segments(W, longer, V, ROWS, seed=2)
    whole, whole_caches = segment_pass(model, ragged.tokens, ragged.starts)
    parts, caches = segment_pass(model, *recut(ragged, shorter))
    np.testing.assert_allclose(parts, whole, rtol=0, atol=tolerance * largest(whole))
    leaves_close(caches, whole_caches, tolerance)


@every_type
def test_decoding_token_by_token_is_the_segment_pass(name, dtype, tolerance):
    model = tiny(name, dtype)
    W, N, V = model.sizes
    ragged = ragged_segments(W, N, V, ROWS, seed=3)
    expected, caches = segment_pass(model, ragged.tokens, ragged.starts)
    decoding, found = model.decoding, []
    for tokens_BT, starts_B in zip(ragged.tokens, ragged.starts, strict=True):
        for t in range(N):
            logits_BV, decoding = model.token(tokens_BT[:, t], decoding, starts_B & (t == 0), ALL)
            found.append(np.asarray(logits_BV))
    tolerance *= largest(expected)
    np.testing.assert_allclose(np.stack(found, axis=1), expected, rtol=0, atol=tolerance)
    leaves_close(model.end(decoding), caches, tolerance)


@every_architecture
def test_rows_decode_at_their_own_pace_and_end_mid_block(name):
    # Row r begins a new document after lengths[r] tokens, wherever in a block that is: the
    # memory of the first must leave no trace, whatever the other rows do meanwhile.
    model, rng = tiny(name), np.random.default_rng(4)
    W, N, V = model.sizes
    lengths, total = np.array([1, W + 1, 2 * W - 1]), -(-4 * W // N) * N
    tokens = rng.integers(0, V, (ROWS, total)).astype(np.int32)
    tokens[:, 0] = BEGIN
    tokens[np.arange(ROWS), lengths] = BEGIN

    caches, found = model.decoding, []
    for t in range(total):
        logits_BV, caches = model.token(tokens[:, t], caches, lengths == t, ALL)
        found.append(np.asarray(logits_BV))
    found = np.stack(found, axis=1)
    alone = np.zeros((2, ROWS, total), np.int32)
    for row, length in enumerate(lengths):
        alone[0, row, :length] = tokens[row, :length]
        alone[1, row, : total - length] = tokens[row, length:]
    both = np.ones((1, ROWS), bool)
    whole = (Ragged(alone[i : i + 1], both, None) for i in range(2))
    first, second = (segment_pass(model, *recut(ragged, N))[0] for ragged in whole)
    for row, length in enumerate(lengths):
        np.testing.assert_allclose(found[row, :length], first[row, :length], rtol=0, atol=1e-9)
        rest = second[row, : total - length]
        np.testing.assert_allclose(found[row, length:], rest, rtol=0, atol=1e-9)


@every_architecture
def test_a_prefix_of_a_block_is_its_token_by_token_form(name):
    model, rng = tiny(name), np.random.default_rng(14)
    (_, N, V), P = model.sizes, model.model.period
    tokens = rng.integers(0, V, (ROWS, N + P)).astype(np.int32)
    _, caches = model.segment(tokens[:, :N], model.empty, NONE)
    counts_B = np.minimum([0, 1, P - 1], P - 1).astype(np.int32)
    found, after = model.part(tokens[:, N:], caches, counts_B)
    decoding = model.begin(caches)
    for t in range(P - 1):
        reads_B = t < counts_B
        logits_BV, decoding = model.token(tokens[:, N + t], decoding, NONE, reads_B)
        expected = np.asarray(logits_BV)[reads_B]
        np.testing.assert_allclose(found[reads_B, t], expected, rtol=0, atol=1e-9)
    leaves_close(after, decoding, 1e-9)


@every_architecture
def test_a_row_holds_still_while_others_decode(name):
    model = tiny(name)
    _, used = model.segment(drawn_segments(model, 1, seed=5)[0], model.empty, NONE)
    caches = free = model.begin(used)
    rng, others = np.random.default_rng(5), np.array([False, True, True])
    before = jax.tree.map(lambda x: np.asarray(x[0]), caches)
    W, _, V = model.sizes
    for _ in range(W + 1):
        tokens_B = rng.integers(0, V, ROWS).astype(np.int32)
        _, free = model.token(tokens_B, free, NONE, ALL)
        _, caches = model.token(tokens_B, caches, NONE, others)
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x[0], y), caches, before)
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x[1:], y[1:]), caches, free)


@every_architecture
def test_rows_are_strangers(name):
    model = tiny(name)
    ragged = ragged_segments(*model.sizes, ROWS, seed=6)
    other = ragged._replace(tokens=ragged.tokens.copy(), starts=ragged.starts.copy())
    shape, vocabulary = other.tokens[:, 1].shape, model.sizes[2]
    other.tokens[:, 1] = np.random.default_rng(7).integers(0, vocabulary, shape)
    other.starts[:, 1] ^= True
    found, caches = segment_pass(model, ragged.tokens, ragged.starts)
    changed, other_caches = segment_pass(model, other.tokens, other.starts)
    assert not np.array_equal(found[1], changed[1])
    for row in (0, 2):
        np.testing.assert_array_equal(found[row], changed[row])
        for a, b in zip(jax.tree.leaves(caches), jax.tree.leaves(other_caches), strict=True):
            np.testing.assert_array_equal(a[row], b[row])


@every_architecture
def test_a_cache_that_has_seen_padding_is_never_read(name):
    model = tiny(name)
    ragged = ragged_segments(*model.sizes, ROWS, seed=8)
    noise = np.random.default_rng(9).integers(0, model.sizes[2], ragged.tokens.shape)
    noisy = np.where(ragged.valid, ragged.tokens, noise).astype(np.int32)
    assert not np.array_equal(noisy, ragged.tokens)
    found, _ = segment_pass(model, ragged.tokens, ragged.starts)
    changed, _ = segment_pass(model, noisy, ragged.starts)
    valid = np.concatenate(list(ragged.valid), axis=1)
    np.testing.assert_array_equal(found[valid], changed[valid])


@every_architecture
def test_a_row_that_starts_a_document_is_a_fresh_model(name):
    model = tiny(name)
    tokens = drawn_segments(model, 3, seed=10)
    tokens[2, 1, 0] = BEGIN
    used, _ = segment_pass(model, tokens, np.array([[False] * 3] * 2 + [[False, True, False]]))
    fresh, _ = segment_pass(model, tokens[2:], np.array([[True] * 3]))
    np.testing.assert_array_equal(used[1, -fresh.shape[1] :], fresh[1])


@unrelated_architectures
def test_logits_depend_on_all_of_the_visible_past_only(name):
    length = 4 * WINDOW
    model = tiny(name).model.for_segments(length)
    x_BTD, direction_BTD = jnp.asarray(np.random.default_rng(11).normal(size=(2, 1, length, 12)))

    def outputs(x_BTD):
        return model.stack(x_BTD, model.init_caches(1))[0][0].sum(axis=-1)

    @jax.jit
    def moved():
        """How far each output moves when each token does, in a direction drawn at random."""
        _, back = jax.vjp(outputs, x_BTD)
        (gradients,) = jax.lax.map(back, jnp.eye(length))  # traced once, where vmap traces again
        return jnp.sum(gradients * direction_BTD, axis=(1, 3))

    jacobian = np.abs(moved())
    reach = model.windows_reach()
    # No gradient flows into the entries of an external memory, so by derivatives it reaches as far
    # as a plain layer; test_references.py shows that the entries are read.
    for t in range(length):
        assert not jacobian[t, t + 1 :].any(), f"token {t} sees the future"
        assert jacobian[t, t] > 0
        if not ARCHITECTURES[name].within:
            assert not jacobian[t, : max(t - reach, 0)].any(), f"token {t} sees beyond its reach"
            assert (jacobian[t, max(t - reach, 0) : t] > 0).all()
        else:
            block = t // WINDOW * WINDOW
            assert (jacobian[t, :block] > 0).all(), f"token {t} misses a token of earlier blocks"


@every_architecture
def test_only_what_carries_a_state_sees_infinitely_far(name):
    model = tiny(name)
    of_windows = math.inf if with_state(model.empty) else model.model.windows_reach()
    reach = ARCHITECTURES[name].reach or of_windows
    tokens = drawn_segments(model, 12, seed=15)
    segments, _, length = tokens.shape
    other = tokens.copy()
    at = min(1, length - 1)
    other[0, :, at] = (other[0, :, at] + 1) % model.sizes[2]
    starts = np.zeros((segments, ROWS), bool)
    starts[0] = True
    found, changed = (segment_pass(model, x, starts)[0] for x in (tokens, other))
    differs = np.abs(found - changed).max(axis=(0, 2)) > 0
    last = differs.nonzero()[0].max()
    if reach < math.inf:
        assert last <= at + reach
    else:
        assert last >= (segments - 1) * length


@every_architecture
def test_clearing_the_state_keeps_windows_only(name):
    model = tiny(name)
    tokens = drawn_segments(model, 5, seed=16)
    other = tokens.copy()
    other[-2, :, -1] = (other[-2, :, -1] + 1) % model.sizes[2]
    found = []
    for read_before in (tokens, other):
        caches = model.empty
        for tokens_BT in read_before[:-1]:
            _, caches = model.segment(tokens_BT, caches, NONE)
        found.append(model.segment(tokens[-1], clear_state(caches, model.empty), NONE)[0])
    # In an interval of P tokens the last one reaches farthest: into the interval before if the
    # windows' reach is at least P.
    kept = model.model.windows_reach() >= model.model.period
    assert np.array_equal(*found) is not kept


def states_of(caches):
    """The address and the value of every state in caches of the segment form."""
    for i in with_state(caches):
        if not isinstance(caches[i], LayerCache):
            yield (i,), caches[i]
            continue
        for j, memory in enumerate(caches[i].memories):
            yield (i, j), memory


def with_one_cleared(caches, empty, address):
    """The caches, one state of which is cleared."""
    i, *inside = address
    changed = cleared(caches[i], empty[i])
    if inside:
        memories = list(caches[i].memories)
        memories[inside[0]] = changed.memories[inside[0]]
        changed = caches[i]._replace(memories=tuple(memories))
    return (*caches[:i], changed, *caches[i + 1 :])


def same(a, b):
    return all(map(np.array_equal, jax.tree.leaves(a), jax.tree.leaves(b)))


@every_architecture
def test_each_state_changes_with_a_segment_and_changes_the_next(name):
    model = tiny(name)
    *first, last, new = drawn_segments(model, 7, seed=17)
    before = model.empty
    for tokens_BT in first:
        _, before = model.segment(tokens_BT, before, NONE)
    _, caches = model.segment(last, before, NONE)
    logits, _ = model.segment(new, caches, NONE)
    for (address, state), (_, old) in zip(states_of(caches), states_of(before), strict=True):
        assert not same(state, old), f"state {address} does not change"
        without, _ = model.segment(new, with_one_cleared(caches, model.empty, address), NONE)
        assert not np.array_equal(logits, without), f"state {address} changes nothing"
