"""Batches of labelled documents, each read whole in one step. Axes as in `batch`.

The inputs of a segment are those of its tokenizer, padded with `PADDING`:

    before, question, separator, text, after, padding        [CLS] question [SEP] text [SEP]

The separator is the last token of `after`, if something comes before the text. A document of n
segments occupies the last n of the K segments of a step; the others are padding and starts.

Targets, each with weight 1, of the last segment or of each (`LabelledDocuments.loss`):

    classes   the class, at position 0
    labels    1 or 0 for each class, at positions 0, 1 ...
    words     the tokens of the answer, at positions 0, 1 ...
    spans     of every segment: first and last position of the answer in it, at positions 0 and 1;
              of the last: the kind of answer (a span, yes, no), at position 2

Source: RMT, section 4, and the published wrapper (segments, alignment); Adding Recurrence to
Pretrained Transformers, section 5.4 (question in every window).
"""

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from brt.checks import Count, OneOf, configurable
from brt.data.stores.token_store import TokenStore
from brt.data.streams.assignment import assign
from brt.data.streams.base import EvaluationPass
from brt.data.streams.batch import Batch, padding
from brt.data.streams.samples import DocumentPerStep
from brt.token_ids import PADDING

ALIGNMENTS = ("right", "left", "center")
TARGETS = {"classes": "label", "labels": "labels", "words": "words", "spans": "kind"}
SPAN = 0


@configurable
@dataclass(eq=False)
class LabelledDocuments:
    """Segments and targets of labelled documents.

    Args:
        alignment: "right" for a short first segment, "left" for a short last one, "center" for
            segments of equal length. Documents that are too long are cut at the end.
        targets: as the model predicts.
        loss: segments with a loss in training; spans have one in every segment.
        words: most tokens of an answer, for targets = "words".
    """

    alignment: Annotated[str, OneOf(ALIGNMENTS)] = "right"
    targets: Annotated[str, OneOf(tuple(TARGETS))] = "classes"
    loss: Annotated[str, OneOf(("last", "every"))] = "last"
    words: Count = 16


def segment_boundaries(length: int, size: int, most: int, alignment: str = "right") -> list[range]:
    """Cuts a text of `length` tokens into at most `most` segments of `size`; drops the rest.

    Returns the tokens of the text in each segment.
    """
    length = min(length, size * most)
    if alignment == "center":
        size = -(-length // -(-length // size))
    first = (length - 1) % size + 1 if alignment == "right" else min(size, length)
    starts = [0, *range(first, length, size)]
    return list(map(range, starts, [*starts[1:], length]))


class LabelledSegments:
    """The segments of all documents of a store: at most `most` (K), of `length` (T) positions.

    Attributes:
        counts_D: segments of each document, int64 (documents,).
        truncated: share of the tokens that is dropped.
    """

    def __init__(
        self, store: TokenStore, length: int, most: int, documents: LabelledDocuments | None
    ):
        self.store = store
        self.length = length
        self.most = most
        self.documents = documents or LabelledDocuments()
        frame = store.manifest["vocabulary"].get("frame", {"before": [], "after": []})
        self._before, self._after = list(frame["before"]), list(frame["after"])
        self.annotations = self._checked(store.annotations())
        questions_D = np.array([a.get("question", 0) for a in self.annotations], np.int64)
        separated_D = (questions_D > 0) | bool(self._before)
        around_D = len(self._before) + questions_D + len(self._after)
        around_D += separated_D * len(self._after[-1:])
        self.sizes_D = length - around_D
        if (short := int(np.min(self.sizes_D))) < 1:
            raise ValueError(
                f"Trainer.segment_length = {length} leaves no room for text beside the special "
                f"tokens and the longest question of {store.folder}: bind it to "
                f"{length - short + 1} or more."
            )
        texts_D = store.lengths_D - questions_D
        if (texts_D < 1).any():
            title = store.titles()[int(np.argmax(texts_D < 1))]
            raise ValueError(f"Document {title!r} of {store.folder} has no text: remove it.")
        self.questions_D = questions_D
        self.texts_D = texts_D
        read_D = np.minimum(texts_D, self.sizes_D * most)
        self.counts_D = -(-read_D // self.sizes_D)
        self.truncated = 1 - float(read_D.sum()) / float(texts_D.sum())

    def _checked(self, annotations: list[dict[str, Any] | None]) -> list[dict[str, Any]]:
        targets = self.documents.targets
        checked = [annotation or {} for annotation in annotations]
        for number, annotation in enumerate(checked):
            if TARGETS[targets] not in annotation:
                raise ValueError(
                    f"Document {self.store.titles()[number]!r} of {self.store.folder} is not "
                    f"labelled with {targets}: bind Corpus.source to a source that gives them, or "
                    f"LabelledDocuments.targets to {', '.join(t for t in TARGETS if t != targets)}."
                )
        most = max((annotation.get("classes", 0) for annotation in checked), default=0)
        if targets == "labels" and most > self.length:
            raise ValueError(
                f"{self.store.folder} has {most} classes, and each is asked for at a position of "
                f"its own: bind Trainer.segment_length = {most} or more."
            )
        return checked

    def boundaries(self, document: int) -> list[range]:
        length, size = int(self.texts_D[document]), int(self.sizes_D[document])
        return segment_boundaries(length, size, self.most, self.documents.alignment)

    def first_position(self, document: int) -> int:
        return self.length - int(self.sizes_D[document]) - len(self._after)

    def write(self, batch: Batch, k: int, b: int, document: int, segment: int, loss: str) -> None:
        boundaries = self.boundaries(document)
        part = boundaries[segment]
        length = int(self.questions_D[document])
        question = self.store.tokens(document, 0, length)
        text = self.store.tokens(document, length + part.start, length + part.stop)
        separator = self._after[-1:] if self._before or length else []
        ids = [*self._before, *question, *separator, *text, *self._after]
        batch.inputs_KBT[k, b, : len(ids)] = ids
        batch.starts_KB[k, b] = segment == 0
        is_last = segment == len(boundaries) - 1
        targets = self._targets(document, part)
        weights = [is_last or loss == "every"] * len(targets)
        if self.documents.targets == "spans":
            is_span = targets[-1] == SPAN
            weights = [is_span, is_span, is_last]
        batch.targets_KBT[k, b, : len(targets)] = targets[: self.length]
        batch.weights_KBT[k, b, : len(targets)] = weights[: self.length]

    def _targets(self, document: int, part: range) -> list[int]:
        annotation = self.annotations[document]
        if self.documents.targets == "classes":
            return [annotation["label"]]
        if self.documents.targets == "labels":
            return [int(c in annotation["labels"]) for c in range(annotation["classes"])]
        if self.documents.targets == "words":
            return annotation["words"][: min(self.documents.words, self.length)]
        for start, stop in annotation.get("spans", ()):
            if part.start <= start and stop <= part.stop:
                first = self.first_position(document) + start - part.start
                return [first, first + stop - start - 1, annotation["kind"]]
        return [0, 0, annotation["kind"]]


def _empty(segments: int, rows: int, length: int) -> Batch:
    batch = padding(segments, rows, length)
    batch.inputs_KBT[:] = PADDING
    return batch


@dataclass(eq=False)
class LabelledStream(DocumentPerStep):
    store: TokenStore
    documents: LabelledDocuments | None = None
    order_key = 5

    def _prepare(self) -> None:
        super()._prepare()
        sizes = self.segment_length, self.segments_per_step
        self.segments = LabelledSegments(self.store, *sizes, self.documents)

    @property
    def note(self) -> str:
        return (
            f"{self.segments.truncated:.1%} of the tokens of {self.store.folder} lie after the "
            f"first {self.segments_per_step} segments of their documents and are not read."
        )

    def _read(self, step: int, rows: range) -> Batch:
        batch = _empty(self.segments_per_step, len(rows), self.segment_length)
        loss = self.segments.documents.loss
        for b, document in enumerate(self._documents(step, rows).tolist()):
            empty = self.segments_per_step - int(self.segments.counts_D[document])
            for k in range(empty, self.segments_per_step):
                self.segments.write(batch, k, b, document, k - empty, loss)
        return batch


@dataclass(eq=False)
class LabelledPass(EvaluationPass):
    """One pass of evaluation: every document once, with its last segment scored."""

    store: TokenStore
    most_segments: int = 1
    documents: LabelledDocuments | None = None

    def _prepare(self) -> None:
        sizes = self.segment_length, self.most_segments
        self.segments = LabelledSegments(self.store, *sizes, self.documents)
        counts_D = self.segments.counts_D
        self._order = [
            [(document, segment) for document in own for segment in range(counts_D[document])]
            for own in assign(counts_D, self.rows, np.arange(self.store.num_documents))
        ]
        self.num_steps = max(map(len, self._order))

    def bounded(self, most: int) -> int:  # one document at least: its last segment is scored
        return max(most, int(self.segments.counts_D.max()))

    def segment(self, step: int, row: int) -> tuple[int, int]:
        """Returns document and segment of a batch element at a step; (-1, 0) for none."""
        order = self._order[row]
        return order[step] if step < len(order) else (-1, 0)

    def _read(self, step: int, rows: range) -> Batch:
        batch = _empty(1, len(rows), self.segment_length)
        for b, row in enumerate(rows):
            document, segment = self.segment(step, row)
            if document >= 0:
                self.segments.write(batch, 0, b, document, segment, "last")
        return batch

    def _positions(self, step: int, rows: range) -> tuple[np.ndarray, np.ndarray]:
        positions = []
        for document, segment in (self.segment(step, row) for row in rows):
            start = self.segments.boundaries(document)[segment].start if document >= 0 else 0
            positions.append((document, start))
        documents_B, offsets_B = np.array(positions, np.int64).T
        return documents_B, offsets_B
