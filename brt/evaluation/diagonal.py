"""Evaluation of several segments at once, in the diagonal schedule (`brt/models/diagonal.py`)."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from brt.data.streams.base import EvaluationPass, Stream, with_empty_rows
from brt.data.streams.batch import Batch
from brt.data.token_scores import TokenScores
from brt.evaluation.segment_reader import SegmentReader
from brt.experiment import Experiment
from brt.models.diagonal import run_diagonally


class DiagonalReader(SegmentReader):
    """A `SegmentReader` that runs `Evaluation.segments_together` segments at once, with the state
    kept or cleared before each.
    """

    def __init__(
        self, experiment: Experiment, mesh: jax.sharding.Mesh, rows: int, segment_length: int
    ):
        super().__init__(experiment, mesh, rows, segment_length)
        self.together = experiment.evaluation.segments_together

        def run(params, caches, batch, clear):
            model = experiment.bind_evaluated(params, segment_length)
            x_KBTD = jax.vmap(model.embed)(batch.inputs_KBT)
            x_KBTD, caches = run_diagonally(model, x_KBTD, caches, batch.starts_KB, clear)
            scores = jax.lax.map(lambda x: model.token_losses(*x), (x_KBTD, batch.targets_KBT))
            return caches, scores

        self._run = jax.jit(
            run,
            static_argnames="clear",
            donate_argnames="caches",
            out_shardings=self._results,
        )

    def read(
        self,
        params: Any,
        stream: EvaluationPass,
        state: str = "kept",
        replaced: Callable[[int], bool] | None = None,
        max_steps: int | None = None,
        label: str | None = None,
    ) -> Iterator[TokenScores]:
        assert state in ("kept", "cleared") and replaced is None
        caches = self.empty(params)

        def run(first, batch):
            nonlocal caches
            caches, (nats_KBT, correct_KBT) = self._run(params, caches, batch, state == "cleared")
            return {"nats_BT": nats_KBT, "correct_BT": correct_KBT}

        padded = with_empty_rows(stream, self._all_rows)
        batches = _Together(padded, self.together)
        yield from self._scores(padded, batches, run, stream.rows, max_steps, label)


class _Together(Stream):
    """A pass with K segments in a batch; the last one ends with padding."""

    def __init__(self, inner: EvaluationPass, together: int):
        super().__init__(inner.store, inner.rows, inner.segment_length, together)
        self.inner = inner

    def _read(self, step: int, rows: range) -> Batch:
        steps = range(step * self.segments_per_step, (step + 1) * self.segments_per_step)
        segments = [self.inner.batch(each, rows.start, len(rows)) for each in steps]
        return Batch(*(np.concatenate(arrays) for arrays in zip(*segments)))
