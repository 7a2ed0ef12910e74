"""Evaluates recordings, without a model."""

from collections.abc import Mapping, Sequence

import numpy as np

from brt.data.token_scores import Sums, TokenScores
from brt.evaluation.evaluator import Evaluator, cleared_scalars
from brt.evaluation.recording import Recording

PIECE = 2**16


def recorded_scalars(
    evaluator: Evaluator,
    recordings: Mapping[str, Recording],
    documents: Sequence[int] | None = None,
) -> dict[str, float]:
    """Returns the scalars of `Evaluator.run`, from recordings.

    Args:
        recordings: by state; "kept", and optionally "cleared".
        documents: only these, without scores of the whole text; None for all.
    """
    scalars = _replayed(evaluator, recordings["kept"], documents)
    if "cleared" in recordings:
        scalars |= cleared_scalars(_replayed(evaluator, recordings["cleared"], documents))
    return scalars


def _replayed(evaluator, recording, documents):
    sums: Sums = {}
    store, T = evaluator.store, evaluator.segment_length
    length = max(PIECE // T, 1) * T
    for number in range(store.num_documents) if documents is None else documents:
        for start in range(0, int(store.lengths_D[number]), length):
            piece = number, start, start + length
            scores = recording.document(*piece)
            targets_T, weights_T = store.tokens(*piece), store.weights(*piece)
            arrays = number, start, targets_T, weights_T, scores.nats_T, scores.correct_T
            evaluator.add(sums, TokenScores(*(np.array(array)[None] for array in arrays)))
    return evaluator.scalars(sums, documents is None)
