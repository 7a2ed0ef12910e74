"""Evaluates every document of a split once, from its start, with caches of its own.

The devices return the loss of each token; sums are float64 on the host, so the result does not
depend on how documents were batched.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from brt.data.mixture import MixedStore
from brt.data.stores.token_store import TokenStore
from brt.data.streams.batch import DTYPES, Batch
from brt.data.streams.ids import check_store
from brt.data.streams.labelled import LabelledPass
from brt.data.streams.samples import SamplePass, check_cut
from brt.data.streams.select import check_stride, evaluation_pass
from brt.data.streams.shifted import check_overlap
from brt.evaluation.free_running import SampleDecoder
from brt.evaluation.labels.scores import LabelScore, label_score
from brt.evaluation.reading import STATE_ABLATIONS, SegmentReader, reading_step
from brt.evaluation.recording import Recording
from brt.evaluation.scores import Score, StoreSums, Sums, TokenSums, WritingScore

if TYPE_CHECKING:
    from brt.experiment import Experiment

SHARED = ("scored_tokens", "tokens_per_word", "questions", "truncated")
"""Scalars of the data, which are the same with the state cleared."""

PIECE = 2**16
"""Tokens of a recorded document that are scored at once, about."""


def batch_shape(experiment: "Experiment") -> tuple[int, int]:
    """Returns rows and segment length of an evaluation."""
    trainer, evaluation = experiment.trainer, experiment.evaluation
    T = evaluation.segment_length or trainer.segment_length
    tokens = evaluation.tokens_per_step or trainer.tokens_per_step
    rows, rest = divmod(tokens, T)
    if not rows or (rest and evaluation.tokens_per_step):
        owner = "Evaluation" if evaluation.tokens_per_step else "Trainer"
        raise ValueError(
            f"{owner}.tokens_per_step = {tokens} is no multiple of the segment length of {T} "
            f"tokens: bind Evaluation.tokens_per_step = {max(rows, 1) * T}, or segment_length."
        )
    return rows, T


def check_evaluation(experiment: "Experiment") -> None:
    """Checks the settings of evaluation, and traces its step as far as shapes."""
    trainer, evaluation = experiment.trainer, experiment.evaluation
    rows, T = batch_shape(experiment)
    score = evaluation.score
    if score and trainer.stream not in score.streams:
        raise ValueError(
            f"Evaluation.score = @{type(score).__name__}() needs {score.streams[0]}, and "
            f"Trainer.stream = {trainer.stream!r} has none: bind one of them otherwise."
        )
    if evaluation.stride is not None:
        check_stride(trainer.stream)
        check_overlap(evaluation.stride, T)
    if trainer.stream == "samples" and trainer.sample_length:
        check_cut(trainer.sample_length, T)
    try:
        init, step = reading_step(experiment, rows, T, answers=trainer.stream == "labelled")
        caches = jax.eval_shape(init, experiment.abstract_params)
        shapes = (1, rows, T), (1, rows, T), (1, rows, T), (1, rows)
        batch = Batch._make(map(jax.ShapeDtypeStruct, shapes, DTYPES))
        jax.eval_shape(
            functools.partial(step, by=STATE_ABLATIONS["cleared"]),
            *(experiment.abstract_params, caches, batch, True),
            *(jax.ShapeDtypeStruct((rows,), bool), None),
        )
    except (ValueError, TypeError) as error:
        reason = str(error).replace("Trainer.segment_length", "Evaluation.segment_length")
        raise ValueError(
            f"Evaluation cannot run {rows} rows of segments of {T} tokens "
            f"(Evaluation.segment_length, Evaluation.model): {reason}"
        ) from error


class Evaluator:
    """Evaluates parameters on one split; of a mixture, on each corpus as well.

    Args:
        experiment: with the settings of evaluation.
        store: the split's token store.
        mesh: the device mesh.
    """

    def __init__(
        self,
        experiment: "Experiment",
        store: TokenStore | MixedStore,
        mesh: jax.sharding.Mesh,
    ):
        trainer = experiment.trainer
        self.evaluation = evaluation = experiment.evaluation
        self.store = store
        self.mesh = mesh
        self.score: Score | None = evaluation.score
        rows, T = batch_shape(experiment)
        self.segment_length = T
        labelled = trainer.stream == "labelled"
        self.reader = SegmentReader(experiment, mesh, rows, T, answers=labelled)
        self.has_state = self.reader.has_state
        self.stream = evaluation_pass(
            trainer.stream,
            store,
            rows,
            T,
            evaluation.stride,
            trainer.segments_per_step,
            trainer.labelled,
        )
        self.label_score: LabelScore | None = None
        if isinstance(self.stream, LabelledPass):
            self.label_score = label_score(self.stream.segments, trainer.corpus.vocabulary)
        self.scores: list[Score] = [TokenSums(), *filter(None, [self.score])]
        if isinstance(store, MixedStore):
            self.scores.append(StoreSums())
        self.decoder = None
        if isinstance(self.score, WritingScore) and not isinstance(store, MixedStore):
            self.decoder = SampleDecoder(experiment, mesh, store, rows, T)

    @classmethod
    def in_loop(cls, experiment: "Experiment", mesh: jax.sharding.Mesh) -> "Evaluator | None":
        """Returns the evaluator of a training run; None if `Trainer.eval_every` is 0."""
        if not experiment.trainer.eval_every:
            return None
        store = experiment.open_store(experiment.evaluation.split)
        check_store(store)  # now, not hours later; batches of training are checked one by one
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
            params: parameters on the mesh.
            progress_label: shows progress under this name, or None for silence.
            max_steps: most steps to run; scores that need whole documents are then excluded.
            after_segment: called after each segment; an exception of it ends the evaluation.
        """
        scalars = self._pass(params, "kept", progress_label, max_steps, after_segment)
        if self.decoder and isinstance(self.score, WritingScore):
            label = progress_label and f"{progress_label}, free-running"
            samples = None
            if max_steps and isinstance(self.stream, SamplePass):  # those that are read whole
                samples = max_steps // self.stream.segments * self.stream.rows
            scalars |= self.score.run(self.decoder, params, scalars["accuracy"], samples, label)
        if self.evaluation.cleared and self.has_state and self.evaluation.stride is None:
            label = progress_label and f"{progress_label}, state cleared"
            scalars |= _prefixed(self._pass(params, "cleared", label, max_steps, after_segment))
        return scalars

    def of_recordings(
        self, recordings: Mapping[str, Recording], documents: Sequence[int] | None = None
    ) -> dict[str, float]:
        """Returns the scalars of `run`, from recordings.

        Args:
            recordings: by state; "kept", and optionally "cleared".
            documents: only these, then without scores of the whole text; None for all.
        """
        scalars = self._replay(recordings["kept"], documents)
        if "cleared" in recordings:
            scalars |= _prefixed(self._replay(recordings["cleared"], documents))
        return scalars

    def _replay(self, recording, documents):
        sums: Sums = {}
        whole = documents is None
        length = max(PIECE // self.segment_length, 1) * self.segment_length
        for number in range(self.store.num_documents) if whole else documents:
            for start in range(0, int(self.store.lengths_D[number]), length):
                piece = number, start, start + length
                scores = recording.document(*piece)
                self._add(
                    sums,
                    *(np.array([number]), np.array([start])),
                    *(scores.nats_T[None], scores.correct_T[None]),
                    *(self.store.tokens(*piece)[None], self.store.weights(*piece)[None]),
                )
        return self._scalars(sums, whole)

    def _pass(self, params, state, progress_label, max_steps, after_segment):
        sums: Sums = {}
        of_labels: Sums = {}
        by = STATE_ABLATIONS[state]
        for segment in self.reader.read(
            params, self.stream, by, max_steps=max_steps, label=progress_label
        ):
            place = segment.documents_B, segment.offsets_B
            batch = segment.batch
            scored = batch.targets_KBT[0], batch.weights_KBT[0]
            self._add(sums, *place, segment.nats_BT, segment.correct_BT, *scored)
            if self.label_score:
                self.label_score.add(of_labels, *place, segment.answers_BN)
            if after_segment:
                after_segment()
        if self.label_score:  # labels are no text
            truncated = {"truncated": self.label_score.segments.truncated}
            return self._scalars(sums, False) | self.label_score.scalars(of_labels) | truncated
        return self._scalars(sums, not max_steps or max_steps >= self.stream.num_steps)

    def _add(self, sums, documents_B, offsets_B, nats_BT, correct_BT, targets_BT, weights_BT):
        if self.evaluation.meliad_scoring:
            not_first_T = np.arange(nats_BT.shape[1]) % self.segment_length > 0
            weights_BT = weights_BT * not_first_T * (targets_BT != 0)
        for score in self.scores:
            score.add(sums, self.store, documents_B, offsets_B, nats_BT, correct_BT, weights_BT)

    def _scalars(self, sums, whole):
        scalars = {}
        for score in self.scores:
            whole_text = whole and not self.evaluation.meliad_scoring
            scalars |= score.scalars(sums, self.store, whole_text)
        return scalars


def _prefixed(cleared):
    return {
        f"cleared_{name}": value
        for name, value in cleared.items()
        if name.partition("/")[0] not in SHARED
    }
