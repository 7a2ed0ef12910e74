"""Accuracy on the recall corpus, by the distance of the answer."""

from dataclasses import dataclass

import numpy as np

from brt.checks import Count, CountFrom0, configurable
from brt.data.tasks.recall import answer_distances
from brt.data.token_scores import Score, Store, Sums, TokenScores
from brt.evaluation.scores import add_share


@configurable
@dataclass(eq=False)
class RecallScore(Score):
    """Shares of answers with the highest logit, of near, far and segment-crossing questions.

    Args:
        far: least distance, in tokens, that counts for `recall_accuracy`; at least twice the
            receptive field n * W of the stack, beyond which attention alone cannot know the answer.
        segment_length: T in tokens, of the evaluation.
        segments: least number of segment boundaries between definition and answer that counts for
            `recall_accuracy_across_segments`.
    """

    far: CountFrom0
    segment_length: Count
    segments: Count = 3

    def add(self, sums: Sums, store: Store, segment: TokenScores) -> None:
        for row, (document, offset) in enumerate(zip(segment.documents_B, segment.offsets_B)):
            if document < 0:
                continue
            positions, distances = answer_distances(store.tokens(document))
            scored = np.isin(positions, offset + np.flatnonzero(segment.weights_BT[row]))
            positions, distances = positions[scored], distances[scored]
            correct = segment.correct_BT[row, positions - offset]
            # A token is an input one position after it is a target.
            defined = positions - distances + 1
            crossed = positions // self.segment_length - defined // self.segment_length
            for name, group in (
                ("", distances >= self.far),
                ("_near", distances < self.far),
                ("_across_segments", crossed >= self.segments),
            ):
                add_share(sums, f"recall{name}", correct[group])

    def scalars(self, sums: Sums, store: Store, whole: bool) -> dict[str, float]:
        scalars = {}
        for name in ("", "_near", "_across_segments"):
            right, questions = sums.get(f"recall{name}", (0, 0))
            if questions:
                scalars[f"recall_accuracy{name}"] = right / questions
                scalars[f"recall_questions{name}"] = questions
        return scalars
