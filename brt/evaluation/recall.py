"""Accuracy on the recall corpus, by how far back the answer was given."""

import gin
import numpy as np

from brt.checks import Count, CountFrom0, configurable
from brt.data.sources.recall import answer_distances
from brt.evaluation.scores import Score, Store, Sums, TokenScores


@configurable
class RecallScore(Score):
    """Shares of answers with the highest logit, of near, far and segment-crossing questions.

    Args:
        far: distances of at least this many tokens count for `recall_accuracy`; at least
            twice the receptive field n * W of the stack, so that attention alone, even
            relayed through its layers, cannot know the answer.
        segments: answers at least this many segment borders after their definition count
            for `recall_accuracy_across_segments`.
        segment_length: T in tokens, of the evaluation.
    """

    def __init__(
        self,
        far: CountFrom0 = gin.REQUIRED,
        segment_length: Count = gin.REQUIRED,
        segments: Count = 3,
    ):
        self.far = far
        self.segments = segments
        self.segment_length = segment_length

    def add(self, sums: Sums, store: Store, segment: TokenScores) -> None:
        for row, (document, offset) in enumerate(zip(segment.documents_B, segment.offsets_B)):
            if document < 0:
                continue
            tokens = store.tokens(document, 0, int(store.lengths_D[document]))
            positions, distances = answer_distances(tokens)
            inside = (positions >= offset) & (positions < offset + segment.nats_BT.shape[1])
            positions = positions[inside]
            distances = distances[inside]
            correct = segment.correct_BT[row, positions - offset]
            # A token is an input one position after it is a target.
            defined = positions - distances + 1
            crossed = positions // self.segment_length - defined // self.segment_length
            for name, group in (
                ("", distances >= self.far),
                ("_near", distances < self.far),
                ("_across_segments", crossed >= self.segments),
            ):
                sums[f"recall{name}/asked"] = sums.get(f"recall{name}/asked", 0) + int(group.sum())
                right = int(np.count_nonzero(correct[group]))
                sums[f"recall{name}/right"] = sums.get(f"recall{name}/right", 0) + right

    def scalars(self, sums: Sums, store: Store, whole: bool) -> dict[str, float]:
        scalars = {}
        for name in ("", "_near", "_across_segments"):
            if asked := sums.get(f"recall{name}/asked", 0):
                scalars[f"recall_accuracy{name}"] = sums[f"recall{name}/right"] / asked
                scalars[f"recall_questions{name}"] = asked
        return scalars
