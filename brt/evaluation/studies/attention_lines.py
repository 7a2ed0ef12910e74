"""Lines in maps of attention: how memory is written, read and rewritten, and the cache read.

A segment's queries are [read; tokens; write], its keys [cache; read; tokens; write]. A copy in
order is a diagonal in a block of the map, a copy in reverse an anti-diagonal (RMT, Figures 6 and
9). A memory need not keep the order of what it holds: then each row looks at one key, along no
line.

L layers, H heads, X positions of queries, J of keys, N segments of a sample.
"""

from typing import NamedTuple

import numpy as np

from brt.evaluation.studies.attention_measures import best_line

CLEAR = 2
"""Times as much as even attention has: less on a line is no line."""
SHARP = 0.5
"""Of the attention on one key: more is one key a row."""


class Parts(NamedTuple):
    """How a segment's queries and keys are laid out: [cache; read; tokens; write].

    cache, read, tokens, write: numbers of positions; the cache is no query.
    """

    cache: int
    read: int
    tokens: int
    write: int

    @classmethod
    def of(cls, model, segment_length: int):
        S = getattr(model, "num_memory", 0)
        at_end = S if getattr(model, "memory_at_end", False) else 0
        return cls(model.memory_length, S, segment_length, at_end)

    def borders(self) -> list[int]:
        """Where one part of the keys ends and the next begins."""
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


def head_name(layer, head, heads) -> str:
    """As the paper names it: heads are counted on from layer to layer, all from 1."""
    return f"layer {layer + 1}, head {layer * heads + head + 1}"


class _Head(NamedTuple):
    segment: int
    layer: int
    head: int


def add_lines(found, parts: Parts, maps, classes: int) -> None:
    """Adds to a study, for each block, the head with most attention on one line.

    Args:
        found: with "numbers", "arrays", "maps" and "verdict".
        parts: of the maps.
        maps: N arrays (L, H, X, J), means over samples of each segment.
        classes: N; 1 for segments of texts, which are not told apart.
    """
    layers, heads = maps[0].shape[:2]
    everyone = [_Head(*place) for place in np.ndindex(len(maps), layers, heads)]
    sentences = []
    for name, (rows, columns) in parts.blocks().items():
        blocks = {at: maps[at.segment][at.layer, at.head, rows, columns] for at in everyone}
        lines = {at: best_line(block_RC) for at, block_RC in blocks.items()}
        ones = {at: float(block_RC.max(axis=1).mean()) for at, block_RC in blocks.items()}
        straight, sharp = max(lines, key=lambda at: lines[at].mass), max(ones, key=ones.get)
        line, words = lines[straight], name.replace(" ", "_")
        found["numbers"] |= {
            f"{words}/mass_on_line": line.mass,
            f"{words}/chance": line.chance,
            f"{words}/offset": line.offset,
            f"{words}/mass_on_one_key": ones[sharp],
        }
        if line.mass < CLEAR * line.chance:
            sentences.append(
                f"no head {name} along a line ({line.mass:.3f} of the rows' attention at most, "
                f"even {line.chance:.3f})"
            )
        else:
            what = f"{'a' if line.direction == 'diagonal' else 'an'} {line.direction}"
            sentences.append(
                f"{_where(straight, classes, heads)} {name} along {what}: {line.mass:.3f} of its "
                f"rows' attention (even {line.chance:.3f})"
            )
            told = f"{line.direction.capitalize()}: {line.mass:.3f}, even {line.chance:.3f}."
            _draw(found, parts, maps, straight, classes, name, told)
        if ones[sharp] >= SHARP > line.mass:
            sentences.append(
                f"{_where(sharp, classes, heads)} {name} one key a row, in an order of its own: "
                f"{ones[sharp]:.3f} of each row's attention"
            )
            told = f"Each row's most attended key in the block: {ones[sharp]:.3f}."
            _draw(found, parts, maps, sharp, classes, name, told)
    if sentences:
        text = "; ".join(sentences)
        found["verdict"] = f"{found['verdict']} {text[:1].upper()}{text[1:]}.".strip()


def _where(at, classes, heads):
    segment = f"segment {at.segment + 1}, " if classes > 1 else ""
    return segment + head_name(at.layer, at.head, heads)


def _draw(found, parts, maps, at, classes, name, told):
    """A head's whole map, once."""
    key = f"map_{at.segment + 1}_{at.layer + 1}_{at.head + 1}"
    if key in found["arrays"]:
        return
    map_XJ = maps[at.segment][at.layer, at.head]
    found["arrays"][key] = map_XJ.astype(np.float32)
    where = _where(at, classes, maps[0].shape[1])
    found["maps"].append(
        {
            "array": key,
            "title": f"{where[:1].upper()}{where[1:]} {name}",
            "caption": f"Averaged over {'samples' if classes > 1 else 'segments'}; rows are "
            f"queries, columns keys: {_legend(parts)}. {told}",
            "x_label": "key",
            "y_label": "query",
            "x_ends": [-parts.cache, map_XJ.shape[1] - parts.cache - 1],
            "y_ends": [0, map_XJ.shape[0] - 1],
            "x_borders": parts.borders(),
            "y_borders": [b - parts.cache for b in parts.borders() if b > parts.cache],
        }
    )


def _legend(parts):
    names = {"cache": "cache", "read": "memory", "tokens": "tokens", "write": "memory written"}
    shown = (f"{count} {names[n]}" for n, count in zip(parts._fields, parts) if count)
    return ", ".join(shown)
