"""The law of independent references: every architecture agrees with plain loops in float64.

Laws of consistency hold for two wrong forms that agree. Only a transcription of the equations
defines the content of a memory, so an architecture without one fails here.
"""

import inspect

import jax
import numpy as np
import paper_numpy
import pytest
from architectures import (
    ARCHITECTURES,
    QUICK_PRETRAINED,
    VOCABULARY,
    WINDOW,
    every,
    paper_settings,
    random_model,
    segment_length,
)
from ragged import Ragged, ragged_segments
from tiny_models import parameters, plain, read_segment

from brt.data.vocabularies.base import BEGIN

QUICK = (*QUICK_PRETRAINED, "gpt2_pooled_attention", "llama_pooled", "llama_rec")
"""Architectures around pretrained bodies that are compared with every run of the tests."""
TOLERANCE = 1e-9
"""Of the largest logit."""


def long_documents(length, rows, segments, seed) -> Ragged:
    """One document a row, of many segments: everything that a memory drops is dropped."""
    tokens = np.random.default_rng(seed).integers(0, VOCABULARY, (segments, rows, length))
    tokens[0, :, 0] = BEGIN
    starts = np.zeros((segments, rows), bool)
    starts[0] = True
    return Ragged(tokens.astype(np.int32), starts, np.ones(tokens.shape, bool))


def assert_equal(model, reader, corpus, compared=None):
    """All logits of every step agree, scored or not, in the first rows or in all."""
    rows = corpus.starts.shape[1]
    caches, memories = model.init_caches(rows), [reader.begin() for _ in range(rows)]
    for tokens_BT, starts_B in zip(corpus.tokens, corpus.starts, strict=True):
        logits_BTV, caches = read_segment(model, tokens_BT, starts_B, caches)
        assert logits_BTV.dtype == np.float64
        for row in range(compared or rows):
            memory = reader.begin() if starts_B[row] else memories[row]
            expected, memories[row] = reader.read(tokens_BT[row], memory)
            largest = np.abs(expected).max()
            assert largest > 0.1
            np.testing.assert_allclose(logits_BTV[row], expected, rtol=0, atol=TOLERANCE * largest)


@pytest.mark.parametrize("name", every(QUICK))
def test_every_logit_follows_from_the_equations(name):
    length = segment_length(name)
    with jax.enable_x64(True):
        model = random_model(name, seed=1, dtype="float64")
        reader = ARCHITECTURES[name].reference(plain(parameters(model)))
        assert not inspect.getmodule(type(reader)).__name__.startswith("brt")
        corpus = ragged_segments(WINDOW, length, VOCABULARY, rows=3, seed=2)
        assert (corpus.starts.any(axis=1) & ~corpus.starts.all(axis=1)).any()
        assert_equal(model, reader, corpus)
        assert_equal(model, reader, long_documents(length, rows=3, segments=7, seed=3), 1)


SHAPES = {
    "blocks of one token": dict(window=1, width=3, num_heads=1, head_size=2, num_states=2),
    "one state, one layer": dict(
        window=3, width=5, num_heads=3, head_size=1, num_states=1, num_layers=1
    ),
    "coarse buckets": dict(window=37, width=7, num_heads=1, head_size=3, num_states=40),
}


@pytest.mark.parametrize("name", ["rec_lstm_dual", "feedback_two_cells"])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_equations_of_the_stack_hold_at_any_shape(name, shape):
    overrides = SHAPES[shape] | dict(feed_forward_size=4, logits_divisor="width")
    layers = overrides.get("num_layers", 2)
    overrides |= dict(num_layers=layers, recurrent_layers=(layers - 1,))
    with jax.enable_x64(True):
        model = random_model(name, 3, "float64", **overrides)
        settings = paper_settings(**ARCHITECTURES[name].settings | overrides)
        reader = paper_numpy.Reader(plain(parameters(model)), settings)
        segment = (1 if layers > 1 else 3) * overrides["window"]
        corpus = ragged_segments(overrides["window"], segment, VOCABULARY, rows=1, seed=4)
        assert_equal(model, reader, corpus)
