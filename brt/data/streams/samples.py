"""Batches of samples of one length, each read whole in one step.

Axes as in `document_stream`.

A sample x_0 .. x_L is a document. Its inputs are x_0 .. x_{L-1} and its targets x_1 .. x_L, so
that every token but the first is a target, and BEGIN does not occur: a sample says itself where
its answer begins. The L inputs are cut into K segments of T, which make one step of training; so
gradients reach from a sample's last segment to its first. Every step every row reads a new sample.

Source: Bulatov et al. 2022, arXiv:2207.06881, section 4, and the published code's data loader.
"""

import numpy as np

from brt.data.stores.token_store import TokenStore
from brt.data.streams.documents import DTYPES, Batch, check_sizes, padding, permutation, row_range


class SampleStream:
    """The endless stream of training: epoch after epoch, each in an order of its own.

    Rows take the samples in turn, and a step may end one epoch and begin the next; nothing is
    dropped.

    Args:
        store: what to read; documents of K T + 1 tokens.
        rows: B, rows of the global batch; may exceed the samples.
        segment_length: T, in tokens.
        segments_per_step: K.
        seed: decides the order of every epoch; not negative.

    Attributes:
        row_segments_B: segments in one epoch of each row, on average, rounded up; int64 (rows,).

    Raises:
        ValueError: samples of another length, a size below 1, or a negative seed.
    """

    def __init__(
        self,
        store: TokenStore,
        rows: int,
        segment_length: int,
        segments_per_step: int = 1,
        seed: int = 0,
    ):
        check_sizes(seed, rows, segment_length, segments_per_step)
        length = sample_length(store)
        check_cut(length, segment_length, segments_per_step)
        self.store, self.rows, self.seed = store, rows, seed
        self.segment_length, self.segments_per_step = segment_length, segments_per_step
        self.row_segments_B = np.full(rows, -(-store.num_documents * segments_per_step // rows))
        self._known = ()  # the last epochs asked for, at most two: (number, order)

    def batch(self, step: int, first_row: int = 0, num_rows: int | None = None) -> Batch:
        """The samples of one step, in K segments, of rows first_row .. first_row + num_rows - 1.

        Safe to call from several threads. With num_rows None, all rows from first_row on.

        Raises:
            ValueError: a negative step, or rows outside the batch.
        """
        rows = row_range(step, first_row, num_rows, self.rows)
        places = (divmod(step * self.rows + row, self.store.num_documents) for row in rows)
        documents_B = np.array([self._order(epoch)[place] for epoch, place in places])
        return _read(self.store, documents_B, range(self.segments_per_step), self.segment_length)

    def _order(self, epoch):
        for number, order in self._known:
            if number == epoch:
                return order
        order = permutation(self.store.num_documents, self.seed, epoch, 4)
        # One assignment of a finished tuple: other threads see the old one or the new one.
        self._known = (*self._known[-1:], (epoch, order))
        return order


class SamplePass:
    """One pass of evaluation: every sample once, in the store's order, one segment a step.

    Args:
        store: what to read; documents of a multiple of T tokens, and one more.
        rows: B, rows of the global batch; may exceed the samples.
        segment_length: T, in tokens.

    Attributes:
        segments_per_step: K, always 1.
        segments: of a sample.
        num_steps: steps after which every sample has been read.

    Raises:
        ValueError: samples of another length, or a size below 1.
    """

    segments_per_step = 1

    def __init__(self, store: TokenStore, rows: int, segment_length: int):
        check_sizes(0, rows, segment_length)
        length = sample_length(store)
        check_cut(length, segment_length)
        self.store, self.rows, self.segment_length = store, rows, segment_length
        self.segments = length // segment_length
        self.num_steps = -(-store.num_documents // rows) * self.segments

    def batch(self, step: int, first_row: int = 0, num_rows: int | None = None) -> Batch:
        """The segments of one step, K = 1; rows without a sample have weights 0.

        Raises:
            ValueError: a negative step, or rows outside the batch.
        """
        documents_B, _ = self.places(step, first_row, num_rows)
        return _read(self.store, documents_B, [step % self.segments], self.segment_length)

    def places(self, step: int, first_row: int = 0, num_rows: int | None = None):
        """What the rows of `batch` read; as `DocumentPass.places`, a sample being a document."""
        rows = row_range(step, first_row, num_rows, self.rows)
        turn, segment = divmod(step, self.segments)
        documents_B = turn * self.rows + np.array(rows, np.int64)
        documents_B[documents_B >= self.store.num_documents] = -1
        offset = segment * self.segment_length + 1
        return documents_B, np.where(documents_B < 0, 0, offset)


def sample_length(store: TokenStore) -> int:
    """Tokens that are read of every sample, one less than it has.

    Raises:
        ValueError: a mixture, or documents of several lengths, or of one token.
    """
    lengths = np.unique(store.lengths_D) if hasattr(store, "all_tokens") else ()
    if len(lengths) != 1 or lengths[0] < 2:
        raise ValueError(
            f"{store.folder} does not hold samples of one length, two tokens or more; bind "
            'Trainer.stream = "documents", or Trainer.corpus to one Corpus of a task'
        )
    return int(lengths[0]) - 1


def check_cut(length: int, segment_length: int, segments_per_step: int | None = None) -> None:
    """Refuses segments that do not make up a sample.

    Args:
        length: tokens that are read of a sample.
        segments_per_step: None for any number of whole segments.

    Raises:
        ValueError: naming the bindings.
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


def read_samples(store: TokenStore, documents_B) -> tuple[np.ndarray, np.ndarray]:
    """Whole samples: tokens int32 (B, L + 1) and weights float32 (B, L + 1)."""
    shape = store.num_documents, -1
    tokens_BL = store.all_tokens.reshape(shape)[documents_B].astype(DTYPES.targets_KBT)
    if not store.has_weights:
        return tokens_BL, np.ones(tokens_BL.shape, DTYPES.weights_KBT)
    return tokens_BL, store.all_weights.reshape(shape)[documents_B]


def _read(store, documents_B, segments, length):
    """Those segments of the samples; document -1 is padding."""
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
