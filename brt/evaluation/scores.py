"""The scores of every evaluation: sums over segments, and the resulting scalars."""

import numpy as np

from brt.data.token_scores import Score, Store, Sums, TokenScores
from brt.evaluation.perplexity import per_text, per_token
from brt.training.checkpoints.policy import NoSuchMetric


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
