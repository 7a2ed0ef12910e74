"""Batches of samples of one length, each read whole in one step. Axes as in `batch`.

The inputs of a sample x_0 .. x_L are x_0 .. x_{L-1}, its targets x_1 .. x_L; BEGIN does not occur.
With questions, the inputs of scored tokens are id 0.

Source: Bulatov et al. 2022, arXiv:2207.06881, section 4, and the data loader of the published code;
questions: Arora et al. 2023, arXiv:2312.04927, whose inputs do not contain the answers.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from brt.data.mixture import MixedStore
from brt.data.order import permutation
from brt.data.stores.joined_array import rows_of
from brt.data.stores.token_store import TokenStore
from brt.data.streams.base import EvaluationPass, Stream
from brt.data.streams.batch import Batch, padding


class DocumentPerStep(Stream):
    """A training stream of one document per batch element and step, in a new order each epoch.

    A step may end one epoch and begin the next; no document is dropped. B may exceed the documents.
    """

    order_key: int

    def _prepare(self) -> None:
        count = self.store.num_documents
        self.row_segments_B = np.full(self.rows, -(-count * self.segments_per_step // self.rows))
        # Two, because a step may end one epoch and begin the next.
        self._order = functools.lru_cache(2)(
            lambda epoch: permutation(count, self.seed, epoch, self.order_key)
        )

    def _documents(self, step: int, rows: range) -> np.ndarray:
        numbers = (divmod(step * self.rows + row, self.store.num_documents) for row in rows)
        return np.array([self._order(epoch)[number] for epoch, number in numbers])


@dataclass(eq=False)
class SampleStream(DocumentPerStep):
    """The training stream of samples: a store of documents of K T + 1 tokens.

    hides_scored: replace inputs that are scored as targets with id 0.
    """

    store: TokenStore
    hides_scored: bool = False
    order_key = 4

    def _prepare(self) -> None:
        check_cut(sample_length(self.store), self.segment_length, self.segments_per_step)
        super()._prepare()

    def _read(self, step: int, rows: range) -> Batch:
        segments = range(self.segments_per_step)
        sizes = self.segment_length, self.hides_scored
        return _read_segments(self.store, self._documents(step, rows), segments, *sizes)


@dataclass(eq=False)
class SamplePass(EvaluationPass):
    """One pass of evaluation: every sample once, in the order of the store, a segment per step."""

    store: TokenStore
    hides_scored: bool = False

    def _prepare(self) -> None:
        length = sample_length(self.store)
        check_cut(length, self.segment_length)
        self.segments = length // self.segment_length
        self.num_steps = -(-self.store.num_documents // self.rows) * self.segments

    def bounded(self, most: int) -> int:  # whole samples: answers may be at their ends
        return max(most // self.segments, 1) * self.segments

    def _read(self, step: int, rows: range) -> Batch:
        documents_B, _ = self._positions(step, rows)
        segments = [step % self.segments]
        sizes = self.segment_length, self.hides_scored
        return _read_segments(self.store, documents_B, segments, *sizes)

    def _positions(self, step: int, rows: range) -> tuple[np.ndarray, np.ndarray]:
        number, segment = divmod(step, self.segments)
        documents_B = number * self.rows + np.array(rows, np.int64)
        documents_B[documents_B >= self.store.num_documents] = -1
        offset = segment * self.segment_length + 1
        return documents_B, np.where(documents_B < 0, 0, offset)


def sample_length(store: TokenStore | MixedStore) -> int:
    """Returns the number of tokens that a model reads of each sample, one less than its length."""
    lengths_D = store.lengths_D
    if isinstance(store, MixedStore) or lengths_D.min() < 2 or lengths_D.min() != lengths_D.max():
        raise ValueError(
            f"{store.folder} does not hold samples of one length, two tokens or more: bind "
            'Trainer.stream = "documents", or Trainer.corpus to one Corpus of a task.'
        )
    return int(lengths_D[0]) - 1


def check_cut(length: int, segment_length: int, segments_per_step: int | None = None) -> None:
    """Raises if K segments of T do not divide a sample; K None for any number."""
    hint = "; or pad the samples, with padded_length of the task"
    if segments_per_step is None:
        if length % segment_length:
            raise ValueError(
                f"Evaluation.segment_length = {segment_length} does not cut a sample of {length} "
                f"tokens into whole segments: bind it to a divisor of {length}{hint}."
            )
    elif segments_per_step * segment_length != length:
        if length % segments_per_step:
            advice = f"Trainer.segments_per_step to a divisor of {length}"
        else:
            advice = f"Trainer.segment_length = {length // segments_per_step}"
        raise ValueError(
            f"Trainer.segments_per_step = {segments_per_step} segments of Trainer.segment_length = "
            f"{segment_length} tokens do not make up a sample of {length} tokens: bind {advice}"
            f"{hint}."
        )


def read_samples(store: TokenStore, documents_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Reads whole samples: tokens, int32 (B, L + 1), and weights, float32 (B, L + 1)."""
    length = store.num_tokens // store.num_documents
    tokens_BL = rows_of(store.all_tokens, length, documents_B).astype(np.int32)
    if store.all_weights is None:
        return tokens_BL, np.ones(tokens_BL.shape, np.float32)
    return tokens_BL, rows_of(store.all_weights, length, documents_B)


def _read_segments(
    store: TokenStore,
    documents_B: np.ndarray,
    segments: Sequence[int],
    length: int,
    hides_scored: bool,
) -> Batch:
    batch = padding(len(segments), len(documents_B), length)
    read_B = documents_B >= 0
    tokens_BL, weights_BL = read_samples(store, documents_B[read_B])
    inputs_BL = np.where(weights_BL > 0, 0, tokens_BL) if hides_scored else tokens_BL
    for k, segment in enumerate(segments):
        inputs = slice(segment * length, (segment + 1) * length)
        targets = slice(inputs.start + 1, inputs.stop + 1)
        batch.inputs_KBT[k, read_B] = inputs_BL[:, inputs]
        batch.targets_KBT[k, read_B] = tokens_BL[:, targets]
        batch.weights_KBT[k, read_B] = weights_BL[:, targets]
        batch.starts_KB[k, read_B] = segment == 0
    return batch
