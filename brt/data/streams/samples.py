"""Batches of samples of one length, each read whole in one step. Axes as in `batch`.

The inputs of a sample x_0 .. x_L are x_0 .. x_{L-1}, its targets x_1 .. x_L; BEGIN does not occur.
The inputs are cut into K segments of T, which are one training step, so gradients reach from the
last segment of a sample to its first. In every step every row reads a new sample.

Source: Bulatov et al. 2022, arXiv:2207.06881, section 4, and the data loader of the published code.
"""

from collections.abc import Sequence

import numpy as np

from brt.data.mixture import MixedStore
from brt.data.order import permutation
from brt.data.stores.joined_array import rows_of
from brt.data.stores.token_store import TokenStore
from brt.data.streams.base import EvaluationPass, LastResults, Stream
from brt.data.streams.batch import DTYPES, Batch, padding


class SampleStream(Stream):
    """The training stream of samples, in a new order each epoch.

    A step may end one epoch and begin the next; no sample is dropped. `row_segments_B` is an
    average, rounded up.

    Args:
        store: documents of K T + 1 tokens.
        rows: B, rows of the global batch; may exceed the samples.
        segment_length, segments_per_step, seed: as of `Stream`.
    """

    store: TokenStore

    def __init__(
        self,
        store: TokenStore,
        rows: int,
        segment_length: int,
        segments_per_step: int = 1,
        seed: int = 0,
    ):
        super().__init__(store, rows, segment_length, segments_per_step, seed)
        check_cut(sample_length(store), segment_length, segments_per_step)
        self.row_segments_B = np.full(rows, -(-store.num_documents * segments_per_step // rows))
        # Two, because a step may end one epoch and begin the next.
        self._orders = LastResults(
            lambda epoch: permutation(store.num_documents, seed, epoch, 4), kept=2
        )

    def _read(self, step: int, rows: range) -> Batch:
        turns = (divmod(step * self.rows + row, self.store.num_documents) for row in rows)
        documents_B = np.array([self._orders(epoch)[turn] for epoch, turn in turns])
        segments = range(self.segments_per_step)
        return _read_segments(self.store, documents_B, segments, self.segment_length)


class SamplePass(EvaluationPass):
    """One pass of evaluation: every sample once, in the order of the store, one segment per step.

    Args:
        store: documents of a multiple of T tokens, plus one.
        rows: B, rows of the global batch; may exceed the samples.
        segment_length: T, in tokens.

    Attributes:
        segments: of a sample.
    """

    store: TokenStore

    def __init__(self, store: TokenStore, rows: int, segment_length: int):
        super().__init__(store, rows, segment_length)
        length = sample_length(store)
        check_cut(length, segment_length)
        self.segments = length // segment_length
        self.num_steps = -(-store.num_documents // rows) * self.segments

    def _read(self, step: int, rows: range) -> Batch:
        documents_B, _ = self._places(step, rows)
        segments = [step % self.segments]
        return _read_segments(self.store, documents_B, segments, self.segment_length)

    def _places(self, step: int, rows: range) -> tuple[np.ndarray, np.ndarray]:
        turn, segment = divmod(step, self.segments)
        documents_B = turn * self.rows + np.array(rows, np.int64)
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
    """Refuses segments that do not divide a sample.

    Args:
        length: tokens of the inputs of a sample.
        segment_length: T.
        segments_per_step: K; None for any number of whole segments.
    """
    hint = "; or pad the samples, with padded_length of the task"
    if segments_per_step is None:
        if length % segment_length:
            raise ValueError(
                f"Evaluation.segment_length = {segment_length} does not cut a sample of {length} "
                f"tokens into whole segments: bind it to a divisor of {length}{hint}."
            )
    elif segments_per_step * segment_length != length:
        whole = length % segments_per_step == 0
        answer = (
            f"bind Trainer.segment_length = {length // segments_per_step}"
            if whole
            else f"{length} tokens do not divide into {segments_per_step} segments: bind "
            f"Trainer.segments_per_step to a divisor of {length}"
        )
        raise ValueError(
            f"Trainer.segments_per_step = {segments_per_step} segments of Trainer.segment_length = "
            f"{segment_length} tokens do not make up a sample of {length} tokens: {answer}{hint}."
        )


def read_samples(store: TokenStore, documents_B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Reads whole samples.

    Returns:
        tokens: int32 (B, L + 1).
        weights: float32 (B, L + 1).
    """
    length = store.num_tokens // store.num_documents
    tokens_BL = rows_of(store.all_tokens, length, documents_B).astype(DTYPES.targets_KBT)
    if store.all_weights is None:
        return tokens_BL, np.ones(tokens_BL.shape, DTYPES.weights_KBT)
    return tokens_BL, rows_of(store.all_weights, length, documents_B)


def _read_segments(
    store: TokenStore, documents_B: np.ndarray, segments: Sequence[int], length: int
) -> Batch:
    """Reads segments of samples; document -1 is padding."""
    batch = padding(len(segments), len(documents_B), length)
    read_B = documents_B >= 0
    tokens_BL, weights_BL = read_samples(store, documents_B[read_B])
    for k, segment in enumerate(segments):
        inputs = slice(segment * length, (segment + 1) * length)
        targets = slice(inputs.start + 1, inputs.stop + 1)
        batch.inputs_KBT[k, read_B] = tokens_BL[:, inputs]
        batch.targets_KBT[k, read_B] = tokens_BL[:, targets]
        batch.weights_KBT[k, read_B] = weights_BL[:, targets]
        batch.starts_KB[k, read_B] = segment == 0
    return batch
