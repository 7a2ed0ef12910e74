"""Lines in maps of attention: how memory is written, read and rewritten, and the cache read.

A segment's queries are [read; tokens; write], its keys [cache; read; tokens; write]. A copy in
order is a diagonal in a block of the map, a copy in reverse an anti-diagonal (RMT, Figures 6 and
9). A memory need not keep the order of what it holds: then each row attends to one key, along no
line.

L layers, H heads, X positions of queries, J of keys, N segments of a sample.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from brt.models.attention_weights import AttentionLayout
from brt.studies.attention_measures import Line, best_line

CLEAR = 2
"""Times as much as even attention has: less on a line is no line."""
SHARP = 0.5
"""Of the attention on one key: more is one key a row."""


class Parts(NamedTuple):
    """Numbers of positions of each part of a segment's keys; the cache is no query."""

    cache: int
    read: int
    tokens: int
    write: int

    @classmethod
    def of(cls, layout: AttentionLayout) -> "Parts":
        return cls(len(layout.cache_tokens), layout.read, layout.tokens, layout.write)

    def borders(self) -> list[int]:
        """Numbers of the keys at which one part ends and the next begins."""
        ends = np.cumsum(self)
        return sorted({int(end) for end in ends[:-1] if 0 < end < ends[-1]})

    def blocks(self) -> dict[str, tuple[slice, slice]]:
        """Rows (queries) and columns (keys) of what can be copied along a line, by what it does."""
        starts = np.concatenate([[0], np.cumsum(self)])
        keys = {n: slice(starts[i], starts[i + 1]) for i, n in enumerate(self._fields)}
        queries = {n: slice(k.start - self.cache, k.stop - self.cache) for n, k in keys.items()}
        found = {
            "writes tokens to memory": ("write", "tokens"),
            "reads memory": ("tokens", "read"),
            "rewrites memory": ("write", "read"),
            "reads the cache": ("tokens", "cache"),
        }
        return {
            name: (queries[rows], keys[columns])
            for name, (rows, columns) in found.items()
            if getattr(self, rows) and getattr(self, columns)
        }


class Head(NamedTuple):
    """A head of a layer in a segment of a sample; all counted from 0."""

    segment: int
    layer: int
    head: int


class BlockLines(NamedTuple):
    """The heads that hold most attention of a block on a line, or on one key a row.

    block: what such a copy does, a name of `Parts.blocks`.
    straight, line: the head with most attention on one line, and the line.
    sharp, on_one_key: the head whose rows attend most to one key each of the block, and the mean
        of these weights.
    """

    block: str
    straight: Head
    line: Line
    sharp: Head
    on_one_key: float

    @property
    def is_line(self) -> bool:
        """True if more attention lies on the line than an even spread would put there."""
        return self.line.mass >= CLEAR * self.line.chance

    @property
    def is_one_key(self) -> bool:
        """True if the sharp head's rows attend to one key each, in an order of their own."""
        return self.on_one_key >= SHARP > self.line.mass


def find_lines(parts: Parts, maps: Sequence[np.ndarray]) -> list[BlockLines]:
    """Finds, for each block, the heads with most attention on one line, and on one key a row.

    Args:
        parts: of the maps.
        maps: N arrays (L, H, X, J), means over samples of each segment.
    """
    heads = [Head(*index) for index in np.ndindex(len(maps), *maps[0].shape[:2])]
    found = []
    for name, (rows, columns) in parts.blocks().items():
        blocks = {head: maps[head.segment][head.layer, head.head, rows, columns] for head in heads}
        lines = {head: best_line(block_RC) for head, block_RC in blocks.items()}
        on_one_key = {head: float(block.max(axis=1).mean()) for head, block in blocks.items()}
        straight = max(heads, key=lambda head: lines[head].mass)
        sharp = max(heads, key=lambda head: on_one_key[head])
        found.append(BlockLines(name, straight, lines[straight], sharp, on_one_key[sharp]))
    return found
