"""Measures of attention weights: spans, wide heads, and diagonals.

L layers    H heads    X queries    J keys, the queries' own at their end    N distances
M keys of memory    R, C rows and columns of a block of a map

Weights are those of one layer's softmax: every query's sum to 1 over the keys it sees.
"""

from typing import NamedTuple, TypeVar

import jax
import numpy as np

from brt.models.attention_weights import AttentionLayout

Array = TypeVar("Array", np.ndarray, jax.Array)

WIDE_SHARE = 0.2
"""Of the memory's tokens: those with the most attention, which Figure 6 marks."""


def keys_at_distances(layout: AttentionLayout) -> np.ndarray:
    """Returns the key so many tokens back from each query, int (X, N), -1 where there is none.

    N: distances 0, 1, ... up to the greatest that any query has. Keys that are no single token
    are at no distance.
    """
    distances = [
        (query, key, distance)
        for query in range(len(layout.query_tokens))
        for key in range(len(layout.key_tokens))
        if (distance := layout.distance(query, key)) is not None and distance >= 0
    ]
    greatest = max(distance for _, _, distance in distances)
    key_XN = np.full((len(layout.query_tokens), greatest + 1), -1)
    queries, keys, columns = np.array(distances).T
    key_XN[queries, columns] = keys
    return key_XN


def by_distance(weights_HXJ: Array, key_XN: np.ndarray) -> Array:
    """Computes the mean over queries of the attention to the key so far back, (..., N).

    Rows sum to 1 if no query sees what comes after it, and all keys are single tokens.

    Args:
        weights_HXJ: (..., X, J), of NumPy or of JAX.
        key_XN: of `keys_at_distances`.

    Source: Transformer-XL, appendix D and Figure 5.
    """
    queries_X1 = np.arange(len(key_XN))[:, None]
    found_HXN = weights_HXJ[..., queries_X1, np.maximum(key_XN, 0)]
    return (found_HXN * (key_XN >= 0)).mean(-2)


def width(mean_LHN: np.ndarray) -> np.ndarray:
    """Computes the number of distances a head spreads over: e^entropy of its mean, (L, H).

    1 for a head that always attends to one distance, N for one that attends to all alike.
    """
    p = np.asarray(mean_LHN, np.float64)
    p = p / p.sum(-1, keepdims=True)
    return np.exp(-np.sum(p * np.log(np.where(p > 0, p, 1.0)), axis=-1))


def widest_heads(mean_LHN: np.ndarray) -> list[tuple[int, int]]:
    """Returns the widest head of the first, the middle and the last layer: (layer, head) from 0.

    The paper shows one head of each of the layers 1, 8 and 16 of 16, picked by eye.
    """
    width_LH = width(mean_LHN)
    layers = len(width_LH)
    return [
        (layer, int(width_LH[layer].argmax()))
        for layer in dict.fromkeys((0, (layers - 1) // 2, layers - 1))
    ]


def most_attended(weights_TJ: np.ndarray, memory: int, share: float = WIDE_SHARE) -> np.ndarray:
    """Marks those of the first `memory` keys with most attention, over all queries: (M,) bool.

    Source: Transformer-XL, Figure 6: the memory's tokens with the top 20 % of attention.
    """
    total_M = weights_TJ[:, :memory].sum(0)
    chosen_M = np.zeros(memory, bool)
    chosen_M[np.argsort(-total_M, kind="stable")[: round(share * memory)]] = True
    return chosen_M


class Line(NamedTuple):
    """The straight line of a block that holds most attention.

    Attributes:
        direction: "diagonal", or "anti-diagonal" where later rows attend to earlier columns.
        offset: columns that it is moved to the right from where it meets both corners.
        mass: share of the rows' attention that lies on it, all their keys counted.
        chance: what a block has there if its rows spread evenly over its columns.
    """

    direction: str
    offset: int
    mass: float
    chance: float


def best_line(block_RC: np.ndarray) -> Line:
    """Finds how far a block of a map is a copy in order, or in reverse.

    In a block that is not square the line goes from corner to corner: of m write tokens and 2 m
    tokens, each row has two columns. A line may be moved along the columns; rows that it leaves
    count with nothing on it.

    Args:
        block_RC: weights, rows of queries and columns of keys.
    """
    rows, columns = block_RC.shape
    found = []
    for direction in ("diagonal", "anti-diagonal"):
        seen_RC = block_RC if direction == "diagonal" else block_RC[:, ::-1]
        sign = 1 if direction == "diagonal" else -1
        for offset in range(1 - columns, columns):
            r, c = _line(rows, columns, offset)
            mass = float(seen_RC[r, c].sum()) / rows
            found.append(Line(direction, sign * offset, mass, 1 / min(rows, columns)))
    return max(found, key=lambda line: (line.mass, -abs(line.offset)))


def _line(rows, columns, offset):
    """Returns rows and columns of the cells from one corner to the other, moved by an offset."""
    long = np.arange(max(rows, columns))
    short = long * min(rows, columns) // max(rows, columns)
    r, c = (short, long) if columns >= rows else (long, short)
    inside = (c + offset >= 0) & (c + offset < columns)
    return r[inside], c[inside] + offset
