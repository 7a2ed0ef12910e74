"""Reads every document of a split once, from its start, with caches of its own.

The devices return each token's loss; sums are kept in float64 on the host, so the result
does not depend on how documents were batched.
"""

import gin
import numpy as np

from brt.data.mixture import MixedStore
from brt.data.splits import check_split
from brt.data.streams.select import evaluation_pass
from brt.evaluation.free_running import SampleDecoder
from brt.evaluation.perplexity import per_text, per_token
from brt.evaluation.reading import TREATMENTS, SegmentReader


@gin.configurable
class Evaluation:
    """What is evaluated, in the loop of a training run and by `brt.evaluate`.

    Args:
        split: of the corpus; a plain name, never a path.
        tokens_per_step: rows times segment length; None takes the trainer's.
        segment_length: None takes the trainer's.
        max_steps: read only so many segments of each row, in the loop of a training run.
        cleared: evaluate a second time with the state cleared at every segment, if the
            model has a state.
        score: a further score, such as `@RecallScore()` or, of samples, `@FreeRunning()`; or None.
        meliad_scoring: leave out what google-research/meliad does not score: the first token of
            each segment, and id 0, which is padding there and the unknown token of its PG19
            vocabularies. For comparison with its figures; `scored_tokens` tells how many are
            left, and there are no bits per byte, and no other figure
            of the whole text.
        model: by reference, as `Trainer.model`, with the same parameters; its other settings may
            differ: `@evaluation/TransformerXL` takes bindings of that scope, such as a longer
            memory. None takes the trainer's.
        stride: evaluate by windows of one segment that are read from nothing, each `stride` tokens
            after the one before, and score what is new in each. 1 is how a model without memory
            is evaluated at its best, at the price of a whole window for every token
            (Transformer-XL, section 3.1). None reads segments one after another with memory.
    """

    def __init__(
        self,
        split: str = "validation",
        tokens_per_step: int | None = None,
        segment_length: int | None = None,
        max_steps: int | None = None,
        cleared: bool = True,
        score=None,
        meliad_scoring: bool = False,
        model=None,
        stride: int | None = None,
    ):
        self.split = check_split(split, "Evaluation.split")
        self.max_steps, self.cleared, self.score = max_steps, cleared, score
        self.meliad_scoring, self.model, self.stride = meliad_scoring, model, stride
        self.tokens_per_step, self.segment_length = tokens_per_step, segment_length


class TokenSums:
    """The score every evaluation has: sums over scored tokens."""

    def add(self, sums, store, documents_B, offsets_B, nats_BT, correct_BT, weights_BT):
        scored_BT = weights_BT > 0
        weights_BT = weights_BT.astype(np.float64)
        # Masked first: what a model says about padding need not even be finite.
        nats_BT = np.where(scored_BT, nats_BT, 0.0).astype(np.float64)
        for name, value in (
            ("nats", (nats_BT * weights_BT).sum()),
            ("weight", weights_BT.sum()),
            ("correct", (correct_BT * weights_BT).sum()),
            ("tokens", float(scored_BT.sum())),
        ):
            sums[name] = sums.get(name, 0.0) + float(value)

    def scalars(self, sums, store, whole):
        scalars = {
            **per_token(sums["nats"], sums["weight"]),
            "accuracy": sums["correct"] / max(sums["weight"], 1e-6),
            "scored_tokens": sums["tokens"],
        }
        if whole and not store.has_weights:
            scalars |= per_text(sums["nats"], store.manifest)
        return scalars


SHARED = ("scored_tokens", "tokens_per_word")
"""Scalars that say nothing of the model, and so are the same with the state cleared."""


def batch_shape(experiment) -> tuple[int, int]:
    """Rows and segment length of an evaluation.

    Raises:
        ValueError: no whole number of rows.
    """
    trainer, evaluation = experiment.trainer, experiment.trainer.evaluation
    segment_length = evaluation.segment_length or trainer.segment_length
    tokens = evaluation.tokens_per_step or trainer.tokens_per_step
    rows, rest = divmod(tokens, segment_length)
    if rest or not rows:
        raise ValueError(
            f"Evaluation.tokens_per_step = {tokens} is not a whole number of segments of "
            f"{segment_length} tokens."
        )
    return rows, segment_length


class StoreSums(TokenSums):
    """`TokenSums` of each store of a mixture, as `loss/NAME` and so on."""

    def add(self, sums, store, documents_B, offsets_B, nats_BT, correct_BT, weights_BT):
        stores_B = store.stores_of(documents_B)
        for number, (name, part) in enumerate(zip(store.names, store.stores)):
            rows = stores_B == number
            tokens = nats_BT[rows], correct_BT[rows], weights_BT[rows]
            own = sums.setdefault(name, {})
            super().add(own, part, documents_B[rows], offsets_B[rows], *tokens)

    def scalars(self, sums, store, whole):
        scalars = {}
        for name, part in zip(store.names, store.stores):
            if sums[name]["tokens"]:
                found = super().scalars(sums[name], part, whole)
                scalars |= {f"{key}/{name}": value for key, value in found.items()}
        return scalars


class Evaluator:
    """Evaluates parameters on one split, as often as asked; of a mixture, each corpus as well.

    Args:
        experiment: the `Experiment`, whose evaluation settings say what to do.
        store: the split's token store.
        mesh: the device mesh.

    Raises:
        ValueError: rows that do not divide over the data axis, no whole number of rows, or a
            score that the stream cannot give.
    """

    def __init__(self, experiment, store, mesh):
        trainer = experiment.trainer
        self.evaluation = evaluation = trainer.evaluation
        self.store, self.mesh = store, mesh
        rows, self.segment_length = batch_shape(experiment)
        score = evaluation.score
        streams = getattr(score, "streams", ("documents",))
        if score and trainer.stream not in streams:
            raise ValueError(
                f"Evaluation.score = @{type(score).__name__}() looks at {streams[0]}, and "
                f"Trainer.stream = {trainer.stream!r} has none: bind one of them otherwise."
            )
        self.reader = SegmentReader(experiment, mesh, rows, self.segment_length)
        self.has_state = self.reader.has_state
        shape = rows, self.segment_length, evaluation.stride
        self.stream = evaluation_pass(trainer.stream, store, *shape)
        self.scores = [TokenSums()] + ([score] if score else [])
        self.decoder = None
        if hasattr(score, "run"):
            self.decoder = SampleDecoder(experiment, mesh, store, rows, self.segment_length)
        if isinstance(store, MixedStore):
            self.scores.append(StoreSums())

    def run(self, params, progress_label=None, max_steps=None) -> dict[str, float]:
        """Scalars of the split; those with the state cleared have the prefix `cleared_`.

        Args:
            params: parameters on the mesh.
            progress_label: shows progress under this name, or None for silence.
            max_steps: stop after so many steps; scores that need whole documents are left out.
        """
        scalars = self._pass(params, "kept", progress_label, max_steps)
        if self.decoder:
            samples = max_steps and max_steps // self.stream.segments * self.stream.rows
            label = progress_label and f"{progress_label}, free-running"
            own = self.decoder, params, scalars["accuracy"], samples, label
            scalars |= self.evaluation.score.run(*own)
        if self.evaluation.cleared and self.has_state and self.evaluation.stride is None:
            label = progress_label and f"{progress_label}, state cleared"
            scalars |= _prefixed(self._pass(params, "cleared", label, max_steps))
        return scalars

    def of_recordings(self, recordings: dict, documents=None) -> dict[str, float]:
        """The scalars that `run` gives, from recordings.

        Args:
            recordings: `Recording`s by state; "kept", and "cleared" if that is wanted.
            documents: of these only, and then without the figures of the whole text; None for all.
        """
        scalars = self._replay(recordings["kept"], documents)
        if "cleared" in recordings:
            scalars |= _prefixed(self._replay(recordings["cleared"], documents))
        return scalars

    def _replay(self, recording, documents):
        sums, whole = {}, documents is None
        for number in range(self.store.num_documents) if whole else documents:
            scores = recording.document(number)
            place = np.array([number]), np.array([0])
            read = self.store.tokens(number)[None], self.store.weights(number)[None]
            self._add(sums, *place, scores.nats_T[None], scores.correct_T[None], *read)
        return self._scalars(sums, whole)

    def _pass(self, params, state, progress_label, max_steps):
        sums = {}
        reading = self.reader.read(
            params, self.stream, TREATMENTS[state], max_steps=max_steps, label=progress_label
        )
        for segment in reading:
            self._add(
                sums,
                *(segment.documents_B, segment.offsets_B, segment.nats_BT, segment.correct_BT),
                *(segment.batch.targets_KBT[0], segment.batch.weights_KBT[0]),
            )
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
