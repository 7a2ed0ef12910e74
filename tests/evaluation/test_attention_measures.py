"""Measures of attention weights find the planted values."""

import numpy as np
import pytest

from brt.models.attention_weights import AttentionLayout
from brt.studies.attention_measures import (
    best_line,
    by_distance,
    keys_at_distances,
    most_attended,
    widest_heads,
    width,
)


def causal_weights(heads, queries, keys):
    scores = np.random.default_rng(0).normal(size=(heads, queries, keys))
    future = np.arange(keys) > keys - queries + np.arange(queries)[:, None]
    weights = np.exp(np.where(future, -np.inf, scores))
    return weights / weights.sum(-1, keepdims=True)


@pytest.mark.parametrize("queries, keys", [(1, 1), (1, 5), (4, 4), (5, 12), (12, 13)])
def test_attention_by_distance_is_that_of_a_loop_and_sums_to_one(queries, keys):
    weights = causal_weights(3, queries, keys)
    expected = np.zeros((3, keys))
    for h in range(3):
        for i in range(queries):
            for j in range(keys):
                distance = keys - queries + i - j
                if distance >= 0:
                    expected[h, distance] += weights[h, i, j] / queries
    layout = AttentionLayout(tuple(range(queries - keys, 0)), 0, queries, 0)
    found = by_distance(weights, keys_at_distances(layout))
    assert np.allclose(found, expected, atol=1e-15)
    assert np.allclose(found.sum(-1), 1)


def test_keys_that_are_no_single_token_are_at_no_distance():
    layout = AttentionLayout((None, None, -1), 0, 2, 0)
    key_TN = keys_at_distances(layout)
    assert key_TN.tolist() == [[3, 2, -1], [4, 3, 2]]
    weights = np.array([[[0.1, 0.2, 0.3, 0.4, 0.0], [0.1, 0.1, 0.2, 0.2, 0.4]]])
    found = by_distance(weights, key_TN)
    assert np.allclose(found, [[(0.4 + 0.4) / 2, (0.3 + 0.2) / 2, 0.2 / 2]])


def test_a_heads_width_is_one_if_fixed_and_the_span_if_even():
    mean = np.zeros((1, 2, 20))
    mean[0, 0, 7], mean[0, 1] = 1, 1 / 20
    assert np.allclose(width(mean), [[1, 20]])


@pytest.mark.parametrize(
    "layers, chosen", [(1, [0]), (2, [0, 1]), (3, [0, 1, 2]), (16, [0, 7, 15])]
)
def test_wide_heads_are_the_widest_of_three_layers(layers, chosen):
    # Near heads but for one of each layer, whose number is the layer's plus one.
    distance = np.arange(30.0)
    mean = np.tile(np.exp(-distance), (layers, 20, 1))
    for layer in range(layers):
        mean[layer, layer + 1] = 1
    mean /= mean.sum(-1, keepdims=True)
    assert widest_heads(mean) == [(layer, layer + 1) for layer in chosen]


def test_the_marked_fifth_of_the_memory_has_most_attention():
    weights = causal_weights(1, 4, 14)[0]
    chosen = most_attended(weights, 10)
    total = weights[:, :10].sum(0)
    assert chosen.sum() == 2 and total[chosen].min() > total[~chosen].max()
    assert not most_attended(weights, 0).any()


@pytest.mark.parametrize("rows, columns", [(6, 6), (3, 6), (6, 3), (5, 12), (1, 4)])
def test_a_planted_line_has_all_mass_and_even_attention_chance(rows, columns):
    block = np.zeros((rows, columns))
    for r in range(rows):
        # The columns from corner to corner of this row, as real numbers.
        here = [c for c in range(columns) if c * rows // columns == r] or [r * columns // rows]
        block[r, here] = 1 / len(here)
    for direction, seen in (("diagonal", block), ("anti-diagonal", block[:, ::-1])):
        line = best_line(seen)
        assert line.mass == pytest.approx(1) and line.offset == 0
        assert line.direction == direction or rows == 1
    even = best_line(np.full((rows, columns), 1 / columns))
    assert even.mass == pytest.approx(even.chance) == pytest.approx(1 / min(rows, columns))


@pytest.mark.parametrize("offset", [-3, 1, 4])
def test_a_moved_line_is_found_where_it_was_moved_to(offset):
    block = np.eye(8, k=offset)
    line = best_line(block)
    assert (line.direction, line.offset) == ("diagonal", offset)
    assert line.mass == pytest.approx((8 - abs(offset)) / 8)
    line = best_line(block[:, ::-1])
    assert (line.direction, line.offset) == ("anti-diagonal", -offset)


def test_attention_spent_elsewhere_is_missing_from_a_line():
    assert best_line(0.25 * np.eye(6)).mass == pytest.approx(0.25)
