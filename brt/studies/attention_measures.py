"""Measures of attention weights: spans, wide heads, and diagonals.

L layers    H heads    X queries    J keys, the queries' own at their end    N distances
M keys of memory    R, C rows and columns of a block of a map

A segment's queries are [read; tokens; write], its keys [cache; read; tokens; write]. A copy in
order is a diagonal in a block of the map, one in reverse an anti-diagonal (RMT, Figures 6, 9). In
another order rows attend to one key each, along no line.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import jax
import numpy as np

from brt.models.attention_weights import AttentionLayout

Array = TypeVar("Array", np.ndarray, jax.Array)

CLEAR = 2
"""Least attention on a line, as a multiple of even attention."""
SHARP = 0.5
"""Least attention on one key for a row to count as focused."""
WIDE_SHARE = 0.2
"""Share of the memory's tokens that Figure 6 marks."""


def keys_at_distances(layout: AttentionLayout) -> np.ndarray:
    """Returns the key at each distance 0, 1, ... from each query, int (X, N); -1 for none."""
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
    """Returns the mean over queries of the attention at each distance, (..., N).

    Source: Transformer-XL, appendix D and Figure 5.
    """
    queries_X1 = np.arange(len(key_XN))[:, None]
    found_HXN = weights_HXJ[..., queries_X1, np.maximum(key_XN, 0)]
    return (found_HXN * (key_XN >= 0)).mean(-2)


def width(mean_LHN: np.ndarray) -> np.ndarray:
    """Returns the number of distances a head spreads over, e^entropy of its mean, (L, H)."""
    p = np.asarray(mean_LHN, np.float64)
    p = p / p.sum(-1, keepdims=True)
    return np.exp(-np.sum(p * np.log(np.where(p > 0, p, 1.0)), axis=-1))


def widest_heads(mean_LHN: np.ndarray) -> list[tuple[int, int]]:
    """Returns (layer, head) of the widest head of the first, the middle and the last layer."""
    width_LH = width(mean_LHN)
    layers = len(width_LH)
    return [
        (layer, int(width_LH[layer].argmax()))
        for layer in dict.fromkeys((0, (layers - 1) // 2, layers - 1))
    ]


def most_attended(weights_TJ: np.ndarray, memory: int) -> np.ndarray:
    """Marks those of the first `memory` keys with most attention over all queries, bool (M,).

    Source: Transformer-XL, Figure 6: the memory's tokens with the top 20 % of attention.
    """
    total_M = weights_TJ[:, :memory].sum(0)
    chosen_M = np.zeros(memory, bool)
    chosen_M[np.argsort(-total_M, kind="stable")[: round(WIDE_SHARE * memory)]] = True
    return chosen_M


class Line(NamedTuple):
    """The straight line of a block that holds most attention.

    direction: "diagonal", or "anti-diagonal" where later rows attend to earlier columns.
    offset: columns to the right of the line through both corners.
    mass: share of the rows' attention on the line; chance: for evenly spread attention.
    """

    direction: str
    offset: int
    mass: float
    chance: float


def best_line(block_RC: np.ndarray) -> Line:
    """Returns the line of a map's block (queries, keys) with most attention; from corner to corner
    if the block is not square.
    """
    rows, columns = block_RC.shape
    lines = []
    for direction, sign in (("diagonal", 1), ("anti-diagonal", -1)):
        for offset in range(1 - columns, columns):
            r, c = _line(rows, columns, offset)
            mass = float(block_RC[:, ::sign][r, c].sum()) / rows
            lines.append(Line(direction, sign * offset, mass, 1 / min(rows, columns)))
    return max(lines, key=lambda line: (line.mass, -abs(line.offset)))


def _line(rows, columns, offset):
    long = np.arange(max(rows, columns))
    short = long * min(rows, columns) // max(rows, columns)
    r, c = (short, long) if columns >= rows else (long, short)
    inside = (c + offset >= 0) & (c + offset < columns)
    return r[inside], c[inside] + offset


class Parts(NamedTuple):
    """Number of positions of each part of a segment's keys; the cache has no queries."""

    cache: int
    read: int
    tokens: int
    write: int

    @classmethod
    def of(cls, layout: AttentionLayout) -> "Parts":
        return cls(len(layout.cache_tokens), layout.read, layout.tokens, layout.write)

    def borders(self) -> list[int]:
        """Returns the keys at which a part begins, except the first."""
        ends = np.cumsum(self)
        return sorted({int(end) for end in ends[:-1] if 0 < end < ends[-1]})

    def blocks(self) -> dict[str, tuple[slice, slice]]:
        """Returns rows (queries) and columns (keys) of the blocks that can hold a copy, by name."""
        starts = np.concatenate([[0], np.cumsum(self)])
        keys = {n: slice(starts[i], starts[i + 1]) for i, n in enumerate(self._fields)}
        queries = {n: slice(k.start - self.cache, k.stop - self.cache) for n, k in keys.items()}
        names = {
            "writes tokens to memory": ("write", "tokens"),
            "reads memory": ("tokens", "read"),
            "rewrites memory": ("write", "read"),
            "reads the cache": ("tokens", "cache"),
        }
        return {
            name: (queries[rows], keys[columns])
            for name, (rows, columns) in names.items()
            if getattr(self, rows) and getattr(self, columns)
        }


class Head(NamedTuple):
    """A head of a layer in a segment of a sample; all counted from 0."""

    segment: int
    layer: int
    head: int


class BlockLines(NamedTuple):
    """The heads with most attention of a block on a line, or on one key a row.

    block: a name of `Parts.blocks`.
    straight, line: the head with most attention on one line, and the line.
    sharp, on_one_key: the head with most attention on one key a row, and its mean.
    """

    block: str
    straight: Head
    line: Line
    sharp: Head
    on_one_key: float


def find_lines(parts: Parts, maps: Sequence[np.ndarray]) -> list[BlockLines]:
    """Returns the heads of each block of the maps, N arrays (L, H, X, J) of means over samples."""
    heads = [Head(*index) for index in np.ndindex(len(maps), *maps[0].shape[:2])]
    results = []
    for name, (rows, columns) in parts.blocks().items():
        blocks = {head: maps[head.segment][head.layer, head.head, rows, columns] for head in heads}
        lines = {head: best_line(block_RC) for head, block_RC in blocks.items()}
        on_one_key = {head: float(block.max(axis=1).mean()) for head, block in blocks.items()}
        straight = max(heads, key=lambda head: lines[head].mass)
        sharp = max(heads, key=lambda head: on_one_key[head])
        results.append(BlockLines(name, straight, lines[straight], sharp, on_one_key[sharp]))
    return results
