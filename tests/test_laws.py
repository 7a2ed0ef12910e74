"""The laws every architecture keeps: cuts, decoding, rows, causality, gradient borders.

All on one ragged corpus with documents of every awkward length, starting mid-stream, in
float64, where only a mistake makes a difference; and the first two in float32 as well.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from architectures import (
    ARCHITECTURES,
    SEGMENT,
    VOCABULARY,
    WINDOW,
    build,
    cast,
    ragged_segments,
    randomised,
    segment_length,
)
from flax import nnx

from brt.data.vocabularies import BEGIN
from brt.models.caches import clear_state, reset_rows, select_rows

every_architecture = pytest.mark.parametrize("name", ARCHITECTURES)
every_type = pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-9), ("float32", 2e-5)])
ROWS = 3


@pytest.fixture(autouse=True)
def wide_types():
    with jax.enable_x64(True):
        yield


@functools.cache
def tiny(name, dtype="float64"):
    with jax.enable_x64(True):
        return cast(randomised(build(name), seed=1), dtype)


def segment_pass(model, tokens, starts):
    """Folds a model over segments (steps, B, N); returns logits (B, steps * N, V) and caches."""
    graph, params = nnx.split(model, nnx.Param)

    @jax.jit
    def segment(params, tokens_BT, caches, starts_B):
        model = nnx.merge(graph, params)
        return model(tokens_BT, reset_rows(caches, model.init_caches(len(starts_B)), starts_B))

    caches, logits = model.init_caches(tokens.shape[1]), []
    for tokens_BT, starts_B in zip(tokens, starts, strict=True):
        logits_BTV, caches = segment(params, tokens_BT, caches, jnp.asarray(starts_B))
        logits.append(np.asarray(logits_BTV))
    return np.concatenate(logits, axis=1), caches


def recut(ragged, length):
    """The same rows in segments of another length, a divisor of theirs."""
    steps, rows, whole = ragged.tokens.shape
    parts = whole // length
    tokens = ragged.tokens.reshape(steps, rows, parts, length).swapaxes(1, 2)
    starts = np.zeros((steps, parts, rows), bool)
    starts[:, 0] = ragged.starts
    return tokens.reshape(-1, rows, length), starts.reshape(-1, rows)


def largest(x):
    return np.abs(x).max()


def leaves_close(found, expected, tolerance):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * max(1.0, largest(b)))


@every_type
@every_architecture
def test_cutting_a_document_at_block_borders_changes_no_logit_and_no_cache(name, dtype, tolerance):
    model = tiny(name, dtype)
    ragged = ragged_segments(WINDOW, 4 * WINDOW, VOCABULARY, ROWS, seed=2)
    whole, whole_caches = segment_pass(model, ragged.tokens, ragged.starts)
    for length in (WINDOW, 2 * WINDOW):
        parts, caches = segment_pass(model, *recut(ragged, length))
        np.testing.assert_allclose(parts, whole, rtol=0, atol=tolerance * largest(whole))
        leaves_close(caches, whole_caches, tolerance)


@every_type
@every_architecture
def test_decoding_token_by_token_is_the_segment_pass(name, dtype, tolerance):
    model = tiny(name, dtype)
    ragged = ragged_segments(WINDOW, SEGMENT, VOCABULARY, ROWS, seed=3)
    expected, caches = segment_pass(model, ragged.tokens, ragged.starts)
    graph, params = nnx.split(model, nnx.Param)

    @jax.jit
    def step(params, tokens_B, caches, starts_B):
        model = nnx.merge(graph, params)
        empty = model.begin_decoding(model.init_caches(ROWS))
        return model.decode(tokens_B, reset_rows(caches, empty, starts_B))

    decoding, found = model.begin_decoding(model.init_caches(ROWS)), []
    for tokens_BT, starts_B in zip(ragged.tokens, ragged.starts, strict=True):
        for t in range(SEGMENT):
            begins = jnp.asarray(starts_B & (t == 0))
            logits_BV, decoding = step(params, tokens_BT[:, t], decoding, begins)
            found.append(np.asarray(logits_BV))
    tolerance *= largest(expected)
    np.testing.assert_allclose(np.stack(found, axis=1), expected, rtol=0, atol=tolerance)
    leaves_close(model.end_decoding(decoding), caches, tolerance)


@every_architecture
def test_rows_decode_at_their_own_pace_and_documents_may_end_mid_block(name):
    # Row r begins a new document after lengths[r] tokens, wherever in a block that is: the
    # memory of the first must leave no trace, whatever the other rows do meanwhile.
    model, rng = tiny(name), np.random.default_rng(4)
    graph, params = nnx.split(model, nnx.Param)
    lengths, total = np.array([1, WINDOW + 1, 2 * WINDOW - 1]), 3 * WINDOW
    tokens = rng.integers(0, VOCABULARY, (ROWS, total))
    tokens[:, 0] = BEGIN
    tokens[np.arange(ROWS), lengths] = BEGIN

    @jax.jit
    def step(params, tokens_B, caches, starts_B):
        model = nnx.merge(graph, params)
        empty = model.begin_decoding(model.init_caches(len(starts_B)))
        return model.decode(tokens_B, reset_rows(caches, empty, starts_B))

    caches, found = model.begin_decoding(model.init_caches(ROWS)), []
    for t in range(total):
        logits_BV, caches = step(params, tokens[:, t], caches, jnp.asarray(lengths == t))
        found.append(np.asarray(logits_BV))
    found = np.stack(found, axis=1)
    for row, length in enumerate(lengths):
        for part in (slice(0, length), slice(length, total)):
            alone = tokens[row : row + 1, part]
            padded = np.zeros((1, 3 * WINDOW), int)
            padded[:, : alone.shape[1]] = alone
            expected, _ = segment_pass(model, padded[None], np.array([[True]]))
            np.testing.assert_allclose(
                found[row, part], expected[0, : alone.shape[1]], rtol=0, atol=1e-9
            )


@every_architecture
def test_a_row_holds_still_while_others_decode(name):
    model = tiny(name)
    caches = model.begin_decoding(model.init_caches(2))
    rng, still = np.random.default_rng(5), jnp.array([False, True])
    before = jax.tree.map(lambda x: np.asarray(x[0]), caches)
    for _ in range(WINDOW + 1):
        _, new = model.decode(jnp.asarray(rng.integers(0, VOCABULARY, 2)), caches)
        caches = select_rows(still, new, caches)
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x[0], y), caches, before)


@every_architecture
def test_rows_are_strangers(name):
    model, length = tiny(name, "float32"), segment_length(name)
    ragged = ragged_segments(WINDOW, length, VOCABULARY, ROWS, seed=6)
    other = ragged._replace(tokens=ragged.tokens.copy(), starts=ragged.starts.copy())
    other.tokens[:, 1] = np.random.default_rng(7).integers(0, VOCABULARY, other.tokens[:, 1].shape)
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
    model, length = tiny(name, "float32"), segment_length(name)
    ragged = ragged_segments(WINDOW, length, VOCABULARY, ROWS, seed=8)
    noise = np.random.default_rng(9).integers(0, VOCABULARY, ragged.tokens.shape)
    noisy = np.where(ragged.valid, ragged.tokens, noise)
    assert not np.array_equal(noisy, ragged.tokens)
    found, _ = segment_pass(model, ragged.tokens, ragged.starts)
    changed, _ = segment_pass(model, noisy, ragged.starts)
    valid = np.concatenate(list(ragged.valid), axis=1)
    np.testing.assert_array_equal(found[valid], changed[valid])


@every_architecture
def test_a_row_that_starts_a_document_is_a_fresh_model(name):
    model, length = tiny(name, "float32"), segment_length(name)
    rng = np.random.default_rng(10)
    tokens = rng.integers(0, VOCABULARY, (3, ROWS, length))
    tokens[2, 1, 0] = BEGIN
    used, _ = segment_pass(model, tokens, np.array([[False] * 3] * 2 + [[False, True, False]]))
    fresh, _ = segment_pass(model, tokens[2:], np.array([[True] * 3]))
    np.testing.assert_array_equal(used[1, 2 * length :], fresh[1])


@every_architecture
def test_logits_depend_on_all_of_the_past_they_may_see_and_on_nothing_else(name):
    model, length = tiny(name), 4 * WINDOW
    rng = np.random.default_rng(11)
    x_BTD = model.embed(jnp.asarray(rng.integers(0, VOCABULARY, (1, length))))
    caches = model.init_caches(1)

    def outputs(x_BTD):
        return model.stack(x_BTD, caches)[0][0].sum(axis=-1)

    jacobian = np.abs(jax.jacobian(outputs)(x_BTD))[:, 0].max(axis=-1)
    reach = WINDOW * len(model.layers)
    recurrent = any(layer.cell is not None for layer in model.layers)
    for t in range(length):
        assert not jacobian[t, t + 1 :].any(), f"token {t} sees the future"
        assert jacobian[t, t] > 0
        if not recurrent:
            assert not jacobian[t, : max(t - reach, 0)].any(), f"token {t} sees beyond n * W"
            assert (jacobian[t, max(t - reach, 0) : t] > 0).all()
        else:
            block = t // WINDOW * WINDOW
            assert (jacobian[t, :block] > 0).all(), f"token {t} misses a token of earlier blocks"


def test_the_receptive_field_is_exactly_n_windows():
    # Long enough that a stack of three plain layers forgets within the segment.
    model, length = tiny("slide"), 6 * WINDOW
    x_BTD = jnp.asarray(np.random.default_rng(12).normal(size=(1, length, 12)))

    def last(x_BTD):
        return model.stack(x_BTD, model.init_caches(1))[0][0, -1].sum()

    seen = np.abs(jax.grad(last)(x_BTD))[0].max(axis=-1) > 0
    reach = WINDOW * len(model.layers)
    np.testing.assert_array_equal(seen, np.arange(length) >= length - 1 - reach)


@every_architecture
def test_clearing_the_state_at_each_segment_spares_the_first_segment_and_the_windows(name):
    model = tiny(name)
    tokens = np.random.default_rng(13).integers(0, VOCABULARY, (2, ROWS, SEGMENT))
    empty = model.init_caches(ROWS)
    first, kept = model(tokens[0], empty)
    again, _ = model(tokens[0], clear_state(empty, empty))
    np.testing.assert_array_equal(first, again)
    with_state, _ = model(tokens[1], kept)
    without, _ = model(tokens[1], clear_state(kept, empty))
    recurrent = any(layer.cell is not None for layer in model.layers)
    assert np.array_equal(with_state, without) is not recurrent
