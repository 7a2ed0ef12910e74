"""The fast code against the paper's equations as plain loops in float64."""

import jax
import numpy as np
import pytest
from architectures import (
    ARCHITECTURES,
    CELL_SIZES,
    MEMORY_SIZES,
    SIZES,
    VOCABULARY,
    WINDOW,
    parameters,
    ragged_segments,
    random_model,
    read_segment,
    segment_length,
)
from paper_numpy import Settings, init_caches, run_segment

from brt.models.caches import RecurrentCache
from brt.models.memories.memorizing_cache import MemorizingCache

# The paper gives no equations for the sequential order; see test_recurrent_cell.
WITNESSED = [name for name in ARCHITECTURES if name != "rec_sequential"]


def paper_settings(name, **overrides):
    """What the transcription is told, from what the model is told."""
    told = SIZES | CELL_SIZES | MEMORY_SIZES | ARCHITECTURES[name] | overrides
    return Settings(**{key: told[key] for key in Settings.__dataclass_fields__ if key in told})


def plain(tree):
    """Nested dictionaries of NumPy arrays."""
    return jax.tree.map(np.asarray, tree)


def remembered(cache):
    """A layer's cache as the transcription keeps it."""
    found = {}
    if isinstance(cache, RecurrentCache):
        cache, found["states"] = cache.window, cache.states_BSD
    if isinstance(cache, MemorizingCache):
        found |= {"memory_keys": cache.keys_BMHK, "memory_values": cache.values_BMHK}
        cache, found["written"] = cache.window, cache.written_B
    return found | {"keys": cache.keys_BWHK, "values": cache.values_BWHK}


def assert_equal(model, settings, corpus, tolerance=1e-9):
    """Logits, scored or not, and all caches of every step agree."""
    params = plain(parameters(model))
    rows = corpus.starts.shape[1]
    paper_caches, caches = init_caches(params, settings, rows), model.init_caches(rows)
    for tokens_BT, starts_B in zip(corpus.tokens, corpus.starts, strict=True):
        paper_logits, paper_caches = run_segment(
            params, settings, tokens_BT, starts_B, paper_caches
        )
        logits, caches = read_segment(model, tokens_BT, starts_B, caches)
        assert logits.dtype == np.float64
        largest = np.abs(paper_logits).max()
        assert largest > 0.1
        np.testing.assert_allclose(logits, paper_logits, rtol=0, atol=tolerance * largest)
        for layer, (paper_cache, cache) in enumerate(zip(paper_caches, caches, strict=True)):
            cache = remembered(cache)
            assert cache.keys() == paper_cache.keys(), layer
            for key, array in paper_cache.items():
                np.testing.assert_allclose(
                    cache[key], array, rtol=0, atol=tolerance * np.abs(array).max(), err_msg=key
                )


@pytest.mark.parametrize("name", WITNESSED)
def test_every_logit_and_cache_follows_from_the_papers_equations(name):
    with jax.enable_x64(True):
        model = random_model(name, seed=1, dtype="float64")
        corpus = ragged_segments(WINDOW, segment_length(name), VOCABULARY, rows=3, seed=2)
        assert (corpus.starts.any(axis=1) & ~corpus.starts.all(axis=1)).any()
        assert_equal(model, paper_settings(name), corpus)


SHAPES = {
    "blocks of one token": dict(window=1, width=3, num_heads=1, head_size=2, num_states=2),
    "one state, one layer": dict(
        window=3, width=5, num_heads=3, head_size=1, num_states=1, num_layers=1
    ),
    "coarse buckets": dict(window=37, width=7, num_heads=1, head_size=3, num_states=40),
}


@pytest.mark.parametrize("name", ["rec_lstm_dual", "feedback_two_cells"])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_equations_hold_at_any_shape(name, shape):
    overrides = SHAPES[shape] | dict(feed_forward_size=4, logits_divisor="width")
    layers = overrides.get("num_layers", 2)
    overrides |= dict(num_layers=layers, recurrent_layers=(-1,))
    with jax.enable_x64(True):
        model = random_model(name, 3, "float64", **overrides)
        segment = (1 if layers > 1 else 3) * overrides["window"]
        corpus = ragged_segments(overrides["window"], segment, VOCABULARY, rows=1, seed=4)
        settings = paper_settings(name, **overrides | dict(recurrent_layers=(layers - 1,)))
        assert_equal(model, settings, corpus)
