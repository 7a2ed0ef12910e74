"""Makes streams for training and evaluation."""

from brt.checks import check_choice
from brt.data.mixture import MixedStore
from brt.data.stores.token_store import TokenStore
from brt.data.streams.base import EvaluationPass, Stream
from brt.data.streams.contiguous import ContiguousPass, ContiguousStream
from brt.data.streams.documents import DocumentPass, DocumentStream
from brt.data.streams.labelled import LabelledDocuments, LabelledPass, LabelledStream
from brt.data.streams.mixture import MixtureStream
from brt.data.streams.reread import RereadStream
from brt.data.streams.samples import SamplePass, SampleStream
from brt.data.streams.shifted import ShiftedPass

SAMPLES = ("samples", "questions")
STREAMS = ("documents", "contiguous", "shuffled", *SAMPLES, "labelled")
"""The values of `Trainer.stream`; see `Trainer`."""


def training_stream(
    kind: str,
    store: TokenStore | MixedStore,
    rows: int,
    segment_length: int,
    segments_per_step: int = 1,
    seed: int = 0,
    reread_segments: int = 0,
    labelled: LabelledDocuments | None = None,
) -> Stream:
    _check(kind, store)
    arguments = rows, segment_length, segments_per_step, seed
    if reread_segments:
        return RereadStream(training_stream(kind, store, *arguments), reread_segments)
    if isinstance(store, MixedStore):
        return MixtureStream(store, *arguments)
    if kind == "documents":
        return DocumentStream(store, *arguments)
    if kind in SAMPLES:
        return SampleStream(store, *arguments, hides_scored=kind == "questions")
    if kind == "labelled":
        return LabelledStream(store, *arguments, labelled)
    return ContiguousStream(store, *arguments, shuffle=kind == "shuffled")


def evaluation_pass(
    kind: str,
    store: TokenStore | MixedStore,
    rows: int,
    segment_length: int,
    stride: int | None = None,
    segments_per_step: int = 1,
    labelled: LabelledDocuments | None = None,
) -> EvaluationPass:
    """Returns one pass over a store, in its order.

    kind: one of `STREAMS`; only "documents" reads a mixture. stride: of overlapping windows
    (`ShiftedPass`). segments_per_step: most segments of a labelled document.
    """
    _check(kind, store)
    if stride is not None:
        check_stride(kind)
        return ShiftedPass(store, rows, segment_length, stride, contiguous=kind != "documents")
    if kind == "documents" or isinstance(store, MixedStore):
        return DocumentPass(store, rows, segment_length)
    if kind in SAMPLES:
        return SamplePass(store, rows, segment_length, hides_scored=kind == "questions")
    if kind == "labelled":
        return LabelledPass(store, rows, segment_length, segments_per_step, labelled)
    return ContiguousPass(store, rows, segment_length)


def _check(kind: str, store: TokenStore | MixedStore) -> None:
    check_choice("Trainer.stream", kind, STREAMS)
    if isinstance(store, MixedStore):
        check_mixture(kind)
    elif kind == "questions" and store.all_weights is None:
        raise ValueError(
            f'Trainer.stream = "questions" hides scored tokens from the model, and all tokens of '
            f'{store.folder} are scored: bind Trainer.stream = "samples", or Trainer.corpus to a '
            "task with answers."
        )


def check_stride(kind: str) -> None:
    if kind in (*SAMPLES, "labelled"):
        raise ValueError(
            f'Evaluation.stride does not go with Trainer.stream = "{kind}", where every sample '
            "is read whole: bind one of them otherwise."
        )


def check_mixture(kind: str) -> None:
    if kind != "documents":
        raise ValueError(
            f"Trainer.stream = {kind!r} has no order for the documents of a Mixture: bind "
            'Trainer.stream = "documents", or Trainer.corpus to one Corpus.'
        )
