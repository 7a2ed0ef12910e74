"""Scores of an evaluation: sums over segments, and the resulting scalars.

`Evaluation.score` names an additional one, such as `@RecallScore()`.
"""

from typing import Any, NamedTuple

import numpy as np

from brt.evaluation.perplexity import per_text, per_token

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

    def add(self, sums: Sums, store: Store, segment: TokenScores) -> None:
        """Adds a segment to the sums of this score, empty at first."""
        raise NotImplementedError

    def scalars(self, sums: Sums, store: Store, whole: bool) -> dict[str, float]:
        """Returns metrics by name; whole: all of the store was scored."""
        raise NotImplementedError


def add_share(sums: Sums, name: str, correct: np.ndarray) -> None:
    """Adds the numbers of correct and of all decisions to a pair."""
    right, count = sums.get(name, (0, 0))
    sums[name] = right + int(correct.sum()), count + correct.size


class TokenSums(Score):
    """The score of every evaluation: sums over scored tokens."""

    def add(self, sums: Sums, store: Store, segment: TokenScores) -> None:
        scored_BT = segment.weights_BT > 0
        weights_BT = segment.weights_BT.astype(np.float64)
        # Masked first: the loss of padding need not even be finite.
        nats_BT = np.where(scored_BT, segment.nats_BT, 0.0).astype(np.float64)
        for name, value in (
            ("nats", (nats_BT * weights_BT).sum()),
            ("weight", weights_BT.sum()),
            ("correct", (segment.correct_BT * weights_BT).sum()),
            ("tokens", scored_BT.sum()),
        ):
            sums[name] = sums.get(name, 0.0) + float(value)

    def scalars(self, sums: Sums, store: Store, whole: bool) -> dict[str, float]:
        scalars = {
            **per_token(sums["nats"], sums["weight"]),
            "accuracy": sums["correct"] / max(sums["weight"], 1e-6),
            "scored_tokens": sums["tokens"],
        }
        if whole and not store.has_weights:
            scalars |= per_text(sums["nats"], store.manifest)
        return scalars


class StoreSums(TokenSums):
    """`TokenSums` of each store of a mixture, as `loss/NAME` and so on."""

    def add(self, sums: Sums, store: Store, segment: TokenScores) -> None:
        stores_B = store.stores_of(segment.documents_B)
        for number, (name, part) in enumerate(zip(store.names, store.stores)):
            super().add(sums.setdefault(name, {}), part, segment.rows(stores_B == number))

    def scalars(self, sums: Sums, store: Store, whole: bool) -> dict[str, float]:
        scalars: dict[str, float] = {}
        for name, part in zip(store.names, store.stores):
            if sums[name]["tokens"]:
                metrics = super().scalars(sums[name], part, whole)
                scalars |= {f"{key}/{name}": value for key, value in metrics.items()}
        return scalars
