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
    """The base of scores of the documents whose last segment was processed."""

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
                    answer = self.answer(sums, document, answers_N)
                    sums.setdefault("labelled", {})[document] = answer

    def scalars(self, sums: Sums, store: Store, whole: bool) -> dict[str, float]:
        figures = self.figures(sums["labelled"]) if "labelled" in sums else {}
        return figures | {"truncated": self.segments.truncated}

    def add_segment(self, sums: Sums, document: int, part: range, answers_N: np.ndarray) -> None:
        """Adds the answers after any segment."""

    @abc.abstractmethod
    def answer(self, sums: Sums, document: int, answers_N: np.ndarray) -> Any:
        """Returns the answer to a document, after its last segment."""

    @abc.abstractmethod
    def figures(self, answers: dict[int, Any]) -> dict[str, float]:
        """Returns metrics by name, of one answer or more by document."""

    def annotation(self, document: int) -> dict[str, Any]:
        return self.segments.annotations[document]


class ClassScore(LabelScore):
    """Accuracy, precision, recall and F1 of the class with the highest score."""

    def __init__(self, segments: LabelledSegments, vocabulary: Vocabulary):
        super().__init__(segments, vocabulary)
        labels = (annotation.get("label", 0) for annotation in segments.annotations)
        most = max(annotation.get("classes", 2) for annotation in segments.annotations)
        count = max(most, 1 + max(labels))
        names = segments.store.manifest["source"].get("classes")
        self.names = names or [str(number) for number in range(count)]

    def answer(self, sums: Sums, document: int, answers_N: np.ndarray) -> Any:
        return int(np.argmax(answers_N[: len(self.names)]))

    def figures(self, answers: dict[int, Any]) -> dict[str, float]:
        C = len(self.names)
        confusion_CC = np.zeros((C, C), np.int64)
        for document, predicted in answers.items():
            confusion_CC[self.annotation(document)["label"], predicted] += 1
        return class_figures(confusion_CC, self.names)


class LabelsScore(ClassScore):
    """F1 of any number of classes per document: those with a positive score."""

    def answer(self, sums: Sums, document: int, answers_N: np.ndarray) -> Any:
        return answers_N[: len(self.names)] > 0

    def figures(self, answers: dict[int, Any]) -> dict[str, float]:
        labels = [self.annotation(document)["labels"] for document in answers]
        right_DC = np.array([np.isin(np.arange(len(self.names)), of_one) for of_one in labels])
        predicted_DC = np.array(list(answers.values()))
        counts_3C = [x.sum(axis=0) for x in (predicted_DC & right_DC, predicted_DC, right_DC)]
        exact_D = (predicted_DC == right_DC).all(axis=1)
        figures = label_figures(np.stack(counts_3C), self.names)
        return figures | {"exact_match": float(np.mean(exact_D))}


class WordScore(LabelScore):
    """Answer F1 and exact match of the words written after the last segment.

    Documents of one id are one question.
    """

    whole_only = False

    def answer(self, sums: Sums, document: int, answers_N: np.ndarray) -> Any:
        ends = self.vocabulary.frame.after

        def is_text(token: int) -> bool:
            return token not in ends and 0 <= token < self.vocabulary.size

        return self.vocabulary.decode(list(itertools.takewhile(is_text, answers_N.tolist())))

    def figures(self, answers: dict[int, Any]) -> dict[str, float]:
        predicted: dict[str, str] = {}
        right: dict[str, list[str]] = {}
        for document, text in sorted(answers.items()):
            annotation = self.annotation(document)
            name = annotation.get("id", str(document))
            predicted.setdefault(name, text)
            right.setdefault(name, []).extend(annotation["answers"])
        return answer_figures(list(predicted.values()), list(right.values()), self.whole_only)


class SpanScore(WordScore):
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

    def answer(self, sums: Sums, document: int, answers_N: np.ndarray) -> Any:
        kind = int(np.argmax(answers_N[2 * self.segments.length :]))
        if kind != SPAN or document not in sums["best"]:
            return KINDS.get(kind, "")
        _, start, stop = sums["best"][document]
        question = int(self.segments.questions_D[document])
        ids = self.segments.store.tokens(document, question + start, question + stop)
        return self.vocabulary.decode(ids).strip()


SCORES: dict[str, type[LabelScore]] = {
    "classes": ClassScore,
    "labels": LabelsScore,
    "words": WordScore,
    "spans": SpanScore,
}


def label_score(segments: LabelledSegments, vocabulary: Vocabulary) -> LabelScore:
    return SCORES[segments.documents.targets](segments, vocabulary)
