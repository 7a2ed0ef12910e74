"""Evaluation of several segments at once, in the diagonal schedule (`brt/models/diagonal.py`)."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from brt.data.streams.base import EvaluationPass, Stream
from brt.data.streams.batch import Batch
from brt.models.diagonal import run_diagonally


def diagonal_step(bind: Callable[[Any], Any]) -> Callable[..., tuple[tuple, dict[str, jax.Array]]]:
    """Returns a step as of `reading_step`, with the state kept or cleared before each segment."""

    def step(params, caches, batch, replaced, reading_B, neighbours_B, state):
        assert state in ("kept", "cleared")
        model = bind(params)
        x_KBTD = jax.vmap(model.embed)(batch.inputs_KBT)
        clear = state == "cleared"
        x_KBTD, caches = run_diagonally(model, x_KBTD, caches, batch.starts_KB, clear)
        scores = jax.lax.map(lambda x: model.token_losses(*x), (x_KBTD, batch.targets_KBT))
        return caches, dict(zip(("nats_BT", "correct_BT"), scores))

    return step


class Together(Stream):
    """A pass with K segments in a batch; the last one ends with padding."""

    def __init__(self, inner: EvaluationPass, together: int):
        super().__init__(inner.store, inner.rows, inner.segment_length, together)
        self.inner = inner

    def _read(self, step: int, rows: range) -> Batch:
        steps = range(step * self.segments_per_step, (step + 1) * self.segments_per_step)
        segments = [self.inner.batch(each, rows.start, len(rows)) for each in steps]
        return Batch(*(np.concatenate(arrays) for arrays in zip(*segments)))
