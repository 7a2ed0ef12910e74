"""Evaluates every document of a split once, from empty caches. Sums are float64 on the host,
independent of the batches.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from brt.data.mixture import MixedStore
from brt.data.stores.token_store import TokenStore
from brt.data.streams.labelled import LabelledPass
from brt.data.streams.samples import SamplePass
from brt.data.streams.select import evaluation_pass
from brt.data.token_scores import Score, Sums, TokenScores
from brt.evaluation.free_running import FreeRunning, SampleDecoder
from brt.evaluation.labels.scores import label_score
from brt.evaluation.scores import StoreSums, TokenSums
from brt.evaluation.segment_reader import SegmentReader
from brt.experiment import Experiment

SHARED = ("scored_tokens", "tokens_per_word", "questions", "truncated")
"""Scalars that do not depend on the state."""


class Evaluator:
    """Evaluates parameters on one split, and on each corpus of a mixture."""

    def __init__(
        self, experiment: Experiment, store: TokenStore | MixedStore, mesh: jax.sharding.Mesh
    ):
        trainer = experiment.trainer
        self.evaluation = evaluation = experiment.evaluation
        self.store = store
        rows, T = experiment.evaluated_shape
        self.segment_length = T
        self.reader = SegmentReader(
            *(experiment, mesh, rows, T),
            answers=trainer.stream == "labelled",
            together=evaluation.segments_together,
        )
        self.stream = evaluation_pass(
            *(trainer.stream, store, rows, T, evaluation.stride),
            *(trainer.segments_per_step, trainer.labelled),
        )
        self.scores: list[Score] = [TokenSums()]
        self.decoder = None
        if evaluation.score:
            evaluation.score.check(store)
            self.scores.append(evaluation.score)
        if isinstance(store, MixedStore):
            self.scores.append(StoreSums())
        elif isinstance(evaluation.score, FreeRunning):
            self.decoder = SampleDecoder(experiment, mesh, store, rows, T)
        if isinstance(self.stream, LabelledPass):
            self.scores.append(label_score(self.stream.segments, trainer.corpus.vocabulary))

    @classmethod
    def in_loop(cls, experiment: Experiment, mesh: jax.sharding.Mesh) -> "Evaluator | None":
        """Returns a training run's evaluator; None if `Trainer.eval_every` is 0."""
        if not experiment.trainer.eval_every:
            return None
        store = experiment.open_store(experiment.evaluation.split)
        return cls(experiment, store, mesh)

    def run(
        self,
        params: Any,
        progress_label: str | None = None,
        max_steps: int | None = None,
        after_segment: Callable[[], None] | None = None,
    ) -> dict[str, float]:
        """Evaluates parameters; scalars with the state cleared have the prefix `cleared_`.

        Args:
            after_segment: called after each segment, and each batch of free-running samples; its
                exceptions end the evaluation.
        """
        max_steps = max_steps and self.stream.bounded(max_steps)
        rest = max_steps, after_segment
        scalars = self._pass(params, "kept", progress_label, *rest)
        if self.decoder and isinstance(self.evaluation.score, FreeRunning):
            label = progress_label and f"{progress_label}, free-running"
            samples = None
            if max_steps and isinstance(self.stream, SamplePass):
                samples = max_steps // self.stream.segments * self.stream.rows
            score = self.evaluation.score
            given = scalars["accuracy"], samples, label, after_segment
            scalars |= score.run(self.decoder, params, *given)
        if self.evaluation.cleared and self.reader.has_state and self.evaluation.stride is None:
            label = progress_label and f"{progress_label}, state cleared"
            scalars |= cleared_scalars(self._pass(params, "cleared", label, *rest))
        return scalars

    def _pass(self, params, state, label, max_steps, after_segment):
        sums: Sums = {}
        for segment in self.reader.read(params, self.stream, state, None, max_steps, label):
            self.add(sums, segment)
            if after_segment:
                after_segment()
        whole = not max_steps or max_steps >= self.stream.num_steps
        labelled = isinstance(self.stream, LabelledPass)  # labels are not text
        return self.scalars(sums, whole and not labelled)

    def add(self, sums: Sums, segment: TokenScores) -> None:
        if self.evaluation.meliad_scoring:
            not_first_T = np.arange(segment.nats_BT.shape[1]) % self.segment_length > 0
            weights_BT = segment.weights_BT * not_first_T * (segment.targets_BT != 0)
            segment = segment._replace(weights_BT=weights_BT)
        for score in self.scores:
            score.add(sums, self.store, segment)

    def scalars(self, sums: Sums, whole: bool) -> dict[str, float]:
        """Returns the scalars of a pass; whole: over all of every document."""
        scalars: dict[str, float] = {}
        for score in self.scores:
            scalars |= score.scalars(sums, self.store, whole and not self.evaluation.meliad_scoring)
        return scalars


def cleared_scalars(scalars: dict[str, float]) -> dict[str, float]:
    return {
        f"cleared_{name}": value
        for name, value in scalars.items()
        if name.partition("/")[0] not in SHARED
    }
