"""The scores of tokens, and the interface of additional scores.

`Evaluation.score` names an additional `Score`, such as `@RecallScore()`.
"""

from typing import Any, NamedTuple

import numpy as np

Sums = dict[str, Any]

Store = Any
"""A `TokenStore` or a `MixedStore`."""


class TokenScores(NamedTuple):
    """The scores of one segment of every batch element, on the host.

    documents_B, offsets_B: int, position of the segments' first targets; document -1 is padding.
    targets_BT, weights_BT: int32 and float32, above 0 where a target is scored.
    nats_BT: float32, -log p of each target; arbitrary for padding.
    correct_BT: bool, whether the target had the highest logit.
    entropy_BT: float32, of the prediction in nats; if requested.
    answers_BN: answers of a `Reader` after the segment; if requested.
    """

    documents_B: np.ndarray
    offsets_B: np.ndarray
    targets_BT: np.ndarray
    weights_BT: np.ndarray
    nats_BT: np.ndarray
    correct_BT: np.ndarray
    entropy_BT: np.ndarray | None = None
    answers_BN: np.ndarray | None = None

    def rows(self, chosen: Any) -> "TokenScores":
        arrays = (None if array is None else array[chosen] for array in self)
        return TokenScores._make(arrays)


class Score:
    """The base of scores; `streams` are the values of `Trainer.stream` that it can score."""

    streams: tuple[str, ...] = ("documents",)

    def check(self, store: Store) -> None:
        """Raises a `ValueError`, before training, if the store lacks what is scored."""

    def add(self, sums: Sums, store: Store, segment: TokenScores) -> None:
        raise NotImplementedError

    def scalars(self, sums: Sums, store: Store, whole: bool) -> dict[str, float]:
        """Returns metrics by name; whole: all of the store was scored."""
        raise NotImplementedError
