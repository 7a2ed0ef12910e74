"""Scores of labelled documents: of classes, labels, words or spans."""

import abc
import itertools
from typing import Any

import numpy as np

from brt.data.streams.labelled import SPAN, LabelledSegments
from brt.data.token_scores import Score, Store, Sums, TokenScores
from brt.data.vocabularies.base import Vocabulary
from brt.evaluation.labels.answer_scores import answer_figures, best_span
from brt.evaluation.labels.classification import class_figures, label_figures

KINDS = {1: "yes", 2: "no"}
LONGEST_ANSWER = 30
"""Most tokens of an answer; the usual bound."""


class LabelScore(Score):
    streams = ("labelled",)

    def __init__(self, segments: LabelledSegments, vocabulary: Vocabulary):
        self.segments = segments
        self.vocabulary = vocabulary

    def add(self, sums: Sums, store: Store, segment: TokenScores) -> None:
        assert segment.answers_BN is not None
        for row, document in enumerate(segment.documents_B.tolist()):
            if document >= 0:
                boundaries = self.segments.boundaries(document)
                number = [part.start for part in boundaries].index(int(segment.offsets_B[row]))
                answers_N = segment.answers_BN[row]
                self.add_segment(sums, document, boundaries[number], answers_N)
                if number == len(boundaries) - 1:
                    self.add_last(sums, document, answers_N)

    def scalars(self, sums: Sums, store: Store, whole: bool) -> dict[str, float]:
        return self.figures(sums) | {"truncated": self.segments.truncated}

    def add_segment(self, sums: Sums, document: int, part: range, answers_N: np.ndarray) -> None:
        """Adds the answers after any segment."""

    @abc.abstractmethod
    def add_last(self, sums: Sums, document: int, answers_N: np.ndarray) -> None:
        """Adds the answers after the last segment of a document."""

    @abc.abstractmethod
    def figures(self, sums: Sums) -> dict[str, float]:
        """Returns metrics by name, of the documents whose last segment was processed."""

    def annotation(self, document: int) -> dict[str, Any]:
        return self.segments.annotations[document]


class _NamedScore(LabelScore):
    def __init__(self, segments: LabelledSegments, vocabulary: Vocabulary):
        super().__init__(segments, vocabulary)
        labels = (annotation.get("label", 0) for annotation in segments.annotations)
        most = max(annotation.get("classes", 2) for annotation in segments.annotations)
        count = max(most, 1 + max(labels))
        names = segments.store.manifest["source"].get("classes")
        self.names = names or [str(number) for number in range(count)]


class ClassScore(_NamedScore):
    """Accuracy, precision, recall and F1 of the class with the highest score."""

    def add_last(self, sums: Sums, document: int, answers_N: np.ndarray) -> None:
        C = len(self.names)
        confusion_CC = sums.setdefault("confusion", np.zeros((C, C), np.int64))
        confusion_CC[self.annotation(document)["label"], np.argmax(answers_N[:C])] += 1

    def figures(self, sums: Sums) -> dict[str, float]:
        return class_figures(sums["confusion"], self.names) if "confusion" in sums else {}


class LabelsScore(_NamedScore):
    """F1 of any number of classes per document: those with a positive score."""

    def add_last(self, sums: Sums, document: int, answers_N: np.ndarray) -> None:
        predicted_C = answers_N[: len(self.names)] > 0
        right_C = np.isin(np.arange(len(self.names)), self.annotation(document)["labels"])
        counts_3C = np.stack([predicted_C & right_C, predicted_C, right_C]).astype(np.int64)
        sums["labels"] = sums.get("labels", 0) + counts_3C
        sums.setdefault("whole", []).append(bool((predicted_C == right_C).all()))

    def figures(self, sums: Sums) -> dict[str, float]:
        if "labels" not in sums:
            return {}
        figures = label_figures(sums["labels"], self.names)
        return figures | {"exact_match": float(np.mean(sums["whole"]))}


class _AnswerScore(LabelScore):
    """Scores of answers as text; those of one id are one question."""

    whole_only = False

    @abc.abstractmethod
    def texts(self, sums: Sums) -> dict[int, str]:
        """Returns the answer to each document that was read to its end."""

    def figures(self, sums: Sums) -> dict[str, float]:
        predicted: dict[str, str] = {}
        right: dict[str, list[str]] = {}
        for document, text in sorted(self.texts(sums).items()):
            annotation = self.annotation(document)
            name = annotation.get("id", str(document))
            predicted.setdefault(name, text)
            right.setdefault(name, []).extend(annotation["answers"])
        if not predicted:
            return {}
        return answer_figures(list(predicted.values()), list(right.values()), self.whole_only)


class WordScore(_AnswerScore):
    """Answer F1 and exact match of the words written after the last segment."""

    def add_last(self, sums: Sums, document: int, answers_N: np.ndarray) -> None:
        ends = self.vocabulary.frame.after

        def is_text(token: int) -> bool:
            return token not in ends and 0 <= token < self.vocabulary.size

        ids = list(itertools.takewhile(is_text, answers_N.tolist()))
        sums.setdefault("texts", {})[document] = self.vocabulary.decode(ids)

    def texts(self, sums: Sums) -> dict[int, str]:
        return sums.get("texts", {})


class SpanScore(_AnswerScore):
    """Answer F1 and exact match: yes, no, or the best part of the text among all segments.

    Answers are the T scores of first positions, the T of last ones, and those of the three kinds;
    the kind is that of the last segment.
    """

    whole_only = True

    def add_segment(self, sums: Sums, document: int, part: range, answers_N: np.ndarray) -> None:
        T = self.segments.length
        first = self.segments.first_position(document)
        allowed = slice(first, first + len(part))
        span = best_span(answers_N[:T], answers_N[T : 2 * T], allowed, LONGEST_ANSWER)
        best = sums.setdefault("best", {})
        if span and (document not in best or span.score > best[document][0]):
            start = part.start + span.first - first
            best[document] = span.score, start, start + span.last - span.first + 1

    def add_last(self, sums: Sums, document: int, answers_N: np.ndarray) -> None:
        kind = int(np.argmax(answers_N[2 * self.segments.length :]))
        sums.setdefault("kinds", {})[document] = kind

    def texts(self, sums: Sums) -> dict[int, str]:
        texts = {}
        for document, kind in sums.get("kinds", {}).items():
            texts[document] = KINDS.get(kind, "")
            if kind == SPAN and document in sums["best"]:
                _, start, stop = sums["best"][document]
                question = int(self.segments.questions_D[document])
                ids = self.segments.store.tokens(document, question + start, question + stop)
                texts[document] = self.vocabulary.decode(ids).strip()
        return texts


def label_score(segments: LabelledSegments, vocabulary: Vocabulary) -> LabelScore:
    scores: dict[str, type[LabelScore]] = {
        "classes": ClassScore,
        "labels": LabelsScore,
        "words": WordScore,
        "spans": SpanScore,
    }
    return scores[segments.documents.targets](segments, vocabulary)
