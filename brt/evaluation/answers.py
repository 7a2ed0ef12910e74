"""Accuracy on tasks whose documents tell their answers (`brt.data.sources.answers`)."""

import numpy as np

from brt.checks import configurable
from brt.data.sources.answers import Answers, answers_of
from brt.evaluation.scores import Score, Store, Sums, TokenScores


@configurable
class AnswerScore(Score):
    """Share of answers of which every token has the highest logit after the true ones before it.

    Greedy decoding writes exactly these. An answer that is not processed to its end, because
    evaluation stops early, does not count.
    """

    def __init__(self) -> None:
        self._store: Store = None
        self._answers: list[Answers] = []

    def add(self, sums: Sums, store: Store, segment: TokenScores) -> None:
        answers, progress = self._of(store), sums.setdefault("answers", {})
        places = zip(segment.documents_B.tolist(), segment.offsets_B, segment.correct_BT)
        for document, offset, correct_T in places:
            if document < 0:
                continue
            for number, answer in enumerate(answers[document].answers):
                first = max(answer.start - offset, 0)
                part = correct_T[first : max(answer.stop - offset, 0)]
                if part.size:
                    key = document, number
                    left, right = progress.get(key, (answer.stop - answer.start, True))
                    progress[key] = left - part.size, right and bool(part.all())

    def scalars(self, sums: Sums, store: Store, whole: bool) -> dict[str, float]:
        right = [right for left, right in sums.get("answers", {}).values() if not left]
        if not right:
            return {}
        return {"answer_accuracy": float(np.mean(right)), "answers": len(right)}

    def _of(self, store: Store) -> list[Answers]:
        if store is not self._store:
            self._store, self._answers = store, answers_of_store(store)
        return self._answers


def answers_of_store(store: Store) -> list[Answers]:
    found = [answers_of(annotation) for annotation in store.annotations()]
    if None in found:
        raise ValueError(
            f"{store.folder} has documents without answers: bind Corpus.source to a task that "
            "tells them, such as @MultiQueryRecall(), @NeedleInHaystack() or @BabiLong()."
        )
    return [answers for answers in found if answers]
