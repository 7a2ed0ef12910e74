"""The stream that a configuration names: for training, and its counterpart for evaluation."""

from brt.checks import check_choice
from brt.data.mixture import MixedStore
from brt.data.streams.contiguous import ContiguousPass, ContiguousStream
from brt.data.streams.documents import DocumentPass, DocumentStream
from brt.data.streams.mixture import MixtureStream
from brt.data.streams.samples import SamplePass, SampleStream
from brt.data.streams.shifted import ShiftedPass

STREAMS = ("documents", "contiguous", "shuffled", "samples")
"""Documents, each read by one row; the corpus cut into rows; the same, documents shuffled; samples
of one length, each read whole in one step."""


def check_stream(kind: str) -> None:
    """Refuses a name that is none of `STREAMS`.

    Raises:
        ValueError: with the names that are.
    """
    check_choice("Trainer.stream", kind, STREAMS)


def training_stream(
    kind: str, store, rows: int, segment_length: int, segments_per_step: int = 1, seed: int = 0
):
    """The endless stream of one of the `STREAMS` over a token store or a mixture of them.

    Returns:
        An object with `rows`, `segment_length`, `segments_per_step` and
        `batch(step, first_row, num_rows)`.

    Raises:
        ValueError: an unknown kind, a mixture that is not read as documents, or as the stream.
    """
    check_stream(kind)
    _check_mixture(kind, store)
    sizes = rows, segment_length, segments_per_step, seed
    if isinstance(store, MixedStore):
        return MixtureStream(store, *sizes)
    if kind == "documents":
        return DocumentStream(store, *sizes)
    if kind == "samples":
        return SampleStream(store, *sizes)
    return ContiguousStream(store, *sizes, shuffle=kind == "shuffled")


def evaluation_pass(kind: str, store, rows: int, segment_length: int, stride: int | None = None):
    """One pass over a store; `"shuffled"` evaluates in the store's order.

    stride: for windows that overlap, of a `ShiftedPass`; None for segments that do not.

    Returns:
        An object as above with `num_steps` and `places(step)`.

    Raises:
        ValueError: as above, or as the pass.
    """
    check_stream(kind)
    _check_mixture(kind, store)
    if stride is not None:
        if kind == "samples":
            raise ValueError(
                'Evaluation.stride has no place in Trainer.stream = "samples", where every sample '
                "is read whole: bind one of them otherwise."
            )
        return ShiftedPass(store, rows, segment_length, stride, kind != "documents")
    passes = {"documents": DocumentPass, "samples": SamplePass}
    return passes.get(kind, ContiguousPass)(store, rows, segment_length)


def _check_mixture(kind, store):
    if isinstance(store, MixedStore) and kind != "documents":
        raise ValueError(
            f"Trainer.stream = {kind!r} has no order for the documents of a Mixture; bind "
            'Trainer.stream = "documents", or Trainer.corpus to one Corpus'
        )
