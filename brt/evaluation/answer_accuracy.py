"""Accuracy on tasks that annotate their answers (`brt.data.tasks.answers`)."""

import functools

import numpy as np

from brt.checks import configurable
from brt.data.tasks.answers import Answers, answers_of
from brt.data.token_scores import Score, Store, Sums, TokenScores


@configurable
class AnswerScore(Score):
    """Share of answers that greedy decoding writes after the true tokens before them.

    Answers cut by an early stop do not count.
    """

    def check(self, store: Store) -> None:
        answers_of_store(store)

    def add(self, sums: Sums, store: Store, segment: TokenScores) -> None:
        answers, progress = answers_of_store(store), sums.setdefault("answers", {})
        documents, scored_BT = segment.documents_B.tolist(), segment.weights_BT > 0
        elements = zip(documents, segment.offsets_B, segment.correct_BT, scored_BT)
        for document, offset, correct_T, scored_T in elements:
            if document < 0:
                continue
            for number, answer in enumerate(answers[document].answers):
                tokens = slice(max(answer.start - offset, 0), max(answer.stop - offset, 0))
                part = correct_T[tokens][scored_T[tokens]]
                if part.size:
                    key = document, number
                    left, right = progress.get(key, (answer.stop - answer.start, True))
                    progress[key] = left - part.size, right and bool(part.all())

    def scalars(self, sums: Sums, store: Store, whole: bool) -> dict[str, float]:
        right = [right for left, right in sums.get("answers", {}).values() if not left]
        if not right:
            return {}
        return {"answer_accuracy": float(np.mean(right)), "answers": len(right)}


@functools.lru_cache(maxsize=1)
def answers_of_store(store: Store) -> list[Answers]:
    answers = [answers_of(annotation) for annotation in store.annotations()]
    if None in answers:
        raise ValueError(
            f"{store.folder} has documents without answers: bind Corpus.source to a task that "
            "annotates them, such as @MultiQueryRecall(), @NeedleInHaystack() or @BabiLong()."
        )
    return [each for each in answers if each]
