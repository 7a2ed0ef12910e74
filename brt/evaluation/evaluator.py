"""Reads every document of a split once, from its start, with caches of its own.

The devices return each token's loss; sums are kept in float64 on the host, so the result
does not depend on how documents were batched.
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
"""Scalars that say nothing of the model, and so are the same with the state cleared."""

PIECE = 2**16
"""Tokens of a recorded document that are scored at once, about."""


def batch_shape(experiment: "Experiment") -> tuple[int, int]:
    """Returns rows and segment length of an evaluation."""
    trainer, evaluation = experiment.trainer, experiment.evaluation
    segment_length = evaluation.segment_length or trainer.segment_length
    if evaluation.tokens_per_step is None:
        if segment_length > trainer.tokens_per_step:
            raise ValueError(
                f"Evaluation.segment_length = {segment_length} is more than the "
                f"Trainer.tokens_per_step = {trainer.tokens_per_step} that evaluation reads in a "
                f"step: bind Evaluation.tokens_per_step to a multiple of {segment_length}."
            )
        return trainer.tokens_per_step // segment_length, segment_length
    rows, rest = divmod(evaluation.tokens_per_step, segment_length)
    if rest or not rows:
        raise ValueError(
            f"Evaluation.tokens_per_step = {evaluation.tokens_per_step} is not a whole number of "
            f"segments of {segment_length} tokens: bind it to "
            f"{max(rows, 1) * segment_length}, or Evaluation.segment_length to a divisor of it."
        )
    return rows, segment_length


def check_evaluation(experiment: "Experiment") -> None:
    """Traces the step of evaluation, as far as shapes."""
    trainer, evaluation = experiment.trainer, experiment.evaluation
    rows, T = batch_shape(experiment)
    _check_score(experiment)
    if evaluation.stride is not None:
        check_stride(trainer.stream)
        check_overlap(evaluation.stride, T)
    if trainer.stream == "samples" and (length := trainer.sample_length):
        check_cut(length, T)
    labelled = trainer.stream == "labelled"
    try:
        init, step = reading_step(experiment, rows, T, answers=labelled)
        caches = jax.eval_shape(init, experiment.abstract_params)
        shapes = (1, rows, T), (1, rows, T), (1, rows, T), (1, rows)
        batch = Batch._make(map(jax.ShapeDtypeStruct, shapes, DTYPES))
        flags_B = jax.ShapeDtypeStruct((rows,), bool)
        jax.eval_shape(
            functools.partial(step, by=STATE_ABLATIONS["cleared"]),
            *(experiment.abstract_params, caches, batch, True, flags_B, None),
        )
    except (ValueError, TypeError) as error:
        reason = str(error).replace("Trainer.segment_length", "Evaluation.segment_length")
        raise ValueError(
            f"Evaluation cannot read {rows} rows of segments of {T} tokens "
            f"(Evaluation.segment_length, Evaluation.model): {reason}"
        ) from error


def _check_score(experiment):
    score, stream = experiment.evaluation.score, experiment.trainer.stream
    if score and stream not in score.streams:
        raise ValueError(
            f"Evaluation.score = @{type(score).__name__}() looks at {score.streams[0]}, and "
            f"Trainer.stream = {stream!r} has none: bind one of them otherwise."
        )


class Evaluator:
    """Evaluates parameters on one split, as often as asked; of a mixture, each corpus as well.

    Args:
        experiment: whose evaluation settings say what to do.
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
        rows, self.segment_length = batch_shape(experiment)
        self.score: Score | None = evaluation.score
        _check_score(experiment)
        labelled = trainer.stream == "labelled"
        self.reader = SegmentReader(experiment, mesh, rows, self.segment_length, answers=labelled)
        self.has_state = self.reader.has_state
        shape = rows, self.segment_length, evaluation.stride
        self.stream = evaluation_pass(
            trainer.stream, store, *shape, trainer.segments_per_step, trainer.labelled
        )
        self.label_score: LabelScore | None = None
        if isinstance(self.stream, LabelledPass):
            self.label_score = label_score(self.stream.segments, trainer.corpus.vocabulary)
        self.scores: list[Score] = [TokenSums()]
        if self.score:
            self.scores.append(self.score)
        self.decoder = None
        if isinstance(self.score, WritingScore) and not isinstance(store, MixedStore):
            self.decoder = SampleDecoder(experiment, mesh, store, rows, self.segment_length)
        if isinstance(store, MixedStore):
            self.scores.append(StoreSums())

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
            max_steps: stop after so many steps; scores that need whole documents are left out.
            after_segment: called after each segment; an exception of it ends the evaluation.
        """
        scalars = self._pass(params, "kept", progress_label, max_steps, after_segment)
        if self.decoder and isinstance(self.score, WritingScore):
            samples = self._samples(max_steps)
            label = progress_label and f"{progress_label}, free-running"
            scalars |= self.score.run(self.decoder, params, scalars["accuracy"], samples, label)
        if self.evaluation.cleared and self.has_state and self.evaluation.stride is None:
            label = progress_label and f"{progress_label}, state cleared"
            scalars |= _prefixed(self._pass(params, "cleared", label, max_steps, after_segment))
        return scalars

    def _samples(self, steps):
        """Returns how many samples so many steps read whole; None for all."""
        if not steps or not isinstance(self.stream, SamplePass):
            return None
        return steps // self.stream.segments * self.stream.rows

    def of_recordings(
        self, recordings: Mapping[str, Recording], documents: Sequence[int] | None = None
    ) -> dict[str, float]:
        """Returns the scalars that `run` gives, from recordings.

        Args:
            recordings: by state; "kept", and "cleared" if that is wanted.
            documents: of these only, and then without the figures of the whole text; None for all.
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
                part = number, start, start + length
                scores = recording.document(*part)
                begins = np.array([number]), np.array([start])
                read = self.store.tokens(*part)[None], self.store.weights(*part)[None]
                self._add(sums, *begins, scores.nats_T[None], scores.correct_T[None], *read)
        return self._scalars(sums, whole)

    def _pass(self, params, state, progress_label, max_steps, after_segment):
        sums: Sums = {}
        of_labels: Sums = {}
        reading = self.reader.read(
            params, self.stream, STATE_ABLATIONS[state], max_steps=max_steps, label=progress_label
        )
        for segment in reading:
            self._add(
                sums,
                *(segment.documents_B, segment.offsets_B, segment.nats_BT, segment.correct_BT),
                *(segment.batch.targets_KBT[0], segment.batch.weights_KBT[0]),
            )
            if self.label_score:
                places = segment.documents_B, segment.offsets_B
                self.label_score.add(of_labels, *places, segment.answers_BN)
            if after_segment:
                after_segment()
        if self.label_score:  # labels are no text, so nothing is said of that
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
