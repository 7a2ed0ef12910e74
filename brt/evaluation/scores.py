"""The scores of every evaluation: sums over segments, and the resulting scalars.

Figures per byte, character and word are comparable only for the same text: a vocabulary may drop
white space that the text still counts (`lost_white_space`).

Source: Block-Recurrent, appendix I.
"""

import math

import numpy as np

from brt.data.token_scores import Score, Store, Sums, TokenScores
from brt.training.checkpoints.policy import NoSuchMetric

LARGEST = 700.0
"""Nats whose exponential is still a float."""


def per_token(nats: float, weight: float) -> dict[str, float]:
    loss = nats / weight
    return {
        "loss": loss,
        "bits_per_token": loss / math.log(2),
        "perplexity": math.exp(min(loss, LARGEST)),
    }


def per_text(nats: float, manifest: dict) -> dict[str, float]:
    """Returns metrics of a whole split that do not count tokens.

    nats: of all tokens. manifest: of the store, with bytes, characters and words (as counted by the
    text's publisher), 0 if unknown.
    """
    bits = nats / math.log(2)
    figures = {}
    for name, count in (("byte", manifest["bytes"]), ("character", manifest["characters"])):
        if count:
            figures[f"bits_per_{name}"] = bits / count
    if words := manifest["words"]:
        figures["word_level_perplexity"] = math.exp(min(nats / words, LARGEST))
        figures["tokens_per_word"] = manifest["tokens"] / words
    return figures


def add_share(sums: Sums, name: str, correct: np.ndarray) -> None:
    right, count = sums.get(name, (0, 0))
    sums[name] = right + int(correct.sum()), count + correct.size


class TokenSums(Score):
    """The score of every evaluation: sums over scored tokens."""

    def add(self, sums: Sums, store: Store, segment: TokenScores) -> None:
        scored_BT = segment.weights_BT > 0
        weights_BT = segment.weights_BT.astype(np.float64)
        # Masked first: the loss of padding may not be finite.
        nats_BT = np.where(scored_BT, segment.nats_BT, 0.0).astype(np.float64)
        for name, value in (
            ("nats", (nats_BT * weights_BT).sum()),
            ("weight", weights_BT.sum()),
            ("correct", (segment.correct_BT * weights_BT).sum()),
            ("tokens", scored_BT.sum()),
        ):
            sums[name] = sums.get(name, 0.0) + float(value)

    def scalars(self, sums: Sums, store: Store, whole: bool) -> dict[str, float]:
        if not sums["weight"]:
            raise NoSuchMetric(
                f"The evaluation of {store.folder} has no loss, because it read no scored token: "
                "bind Evaluation.max_steps to more segments, or to None for whole documents."
            )
        scalars = {
            **per_token(sums["nats"], sums["weight"]),
            "accuracy": sums["correct"] / sums["weight"],
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
            of_store = sums.setdefault(f"store/{name}", {})
            super().add(of_store, part, segment.rows(stores_B == number))

    def scalars(self, sums: Sums, store: Store, whole: bool) -> dict[str, float]:
        scalars: dict[str, float] = {}
        for name, part in zip(store.names, store.stores):
            if (of_store := sums[f"store/{name}"])["tokens"]:
                metrics = super().scalars(of_store, part, whole)
                scalars |= {f"{key}/{name}": value for key, value in metrics.items()}
        return scalars
