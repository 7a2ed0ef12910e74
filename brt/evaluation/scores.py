"""Scores of an evaluation: sums over segments, and the scalars they end in.

`Evaluation.score` names one more than every evaluation has, such as `@RecallScore()`.
"""

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

from brt.evaluation.perplexity import per_text, per_token

Sums = dict[str, Any]
"""Sums of a score by name; a score of a mixture holds one dictionary for each store."""


Store = Any
"""What is read: a `TokenStore`, or a `MixedStore` of several."""


class Score:
    """The base of scores.

    Class attributes:
        streams: values of `Trainer.stream` that it can score.
    """

    streams: tuple[str, ...] = ("documents",)

    def add(
        self,
        sums: Sums,
        store: Store,
        documents_B: np.ndarray,
        offsets_B: np.ndarray,
        nats_BT: np.ndarray,
        correct_BT: np.ndarray,
        weights_BT: np.ndarray,
    ) -> None:
        """Adds one segment of every row to the sums.

        Args:
            sums: of this score, changed in place; empty at first.
            store: what is read.
            documents_B, offsets_B: int, where each row's segment begins; document -1 is padding.
            nats_BT: float32, -log p of each target; of padding it may be anything.
            correct_BT: bool, whether the target had the highest logit.
            weights_BT: float32, above 0 where a target is scored.
        """
        raise NotImplementedError

    def scalars(self, sums: Sums, store: Store, whole: bool) -> dict[str, float]:
        """Returns figures by name.

        Args:
            sums: after all segments.
            store: as above.
            whole: whether all of the store was scored.
        """
        raise NotImplementedError


class SampleReader(Protocol):
    """A decoder of samples, `brt.evaluation.free_running.SampleDecoder`, as scores use it."""

    scored: int
    segment_length: int

    def read(
        self, params: Any, max_samples: int | None = None, label: str | None = None
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields the targets and the predictions of some samples, int32 (samples, S) each."""


class WritingScore(Score):
    """The base of scores of what the model writes by itself, on samples."""

    streams = ("samples",)

    def run(
        self,
        decoder: SampleReader,
        params: Any,
        accuracy: float,
        max_samples: int | None = None,
        label: str | None = None,
    ) -> dict[str, float]:
        """Has samples written, and returns figures by name.

        Args:
            decoder: writes them.
            params: parameters on the mesh.
            accuracy: teacher-forced.
            max_samples: of the split's first; None for all.
            label: shows progress under this name; None for silence.
        """
        raise NotImplementedError


class TokenSums(Score):
    """The score every evaluation has: sums over scored tokens."""

    def add(
        self,
        sums: Sums,
        store: Store,
        documents_B: np.ndarray,
        offsets_B: np.ndarray,
        nats_BT: np.ndarray,
        correct_BT: np.ndarray,
        weights_BT: np.ndarray,
    ) -> None:
        scored_BT = weights_BT > 0
        weights_BT = weights_BT.astype(np.float64)
        # Masked first: what a model says about padding need not even be finite.
        nats_BT = np.where(scored_BT, nats_BT, 0.0).astype(np.float64)
        for name, value in (
            ("nats", (nats_BT * weights_BT).sum()),
            ("weight", weights_BT.sum()),
            ("correct", (correct_BT * weights_BT).sum()),
            ("tokens", float(scored_BT.sum())),
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

    def add(
        self,
        sums: Sums,
        store: Store,
        documents_B: np.ndarray,
        offsets_B: np.ndarray,
        nats_BT: np.ndarray,
        correct_BT: np.ndarray,
        weights_BT: np.ndarray,
    ) -> None:
        stores_B = store.stores_of(documents_B)
        for number, (name, part) in enumerate(zip(store.names, store.stores)):
            rows = stores_B == number
            tokens = nats_BT[rows], correct_BT[rows], weights_BT[rows]
            own = sums.setdefault(name, {})
            super().add(own, part, documents_B[rows], offsets_B[rows], *tokens)

    def scalars(self, sums: Sums, store: Store, whole: bool) -> dict[str, float]:
        scalars: dict[str, float] = {}
        for name, part in zip(store.names, store.stores):
            if sums[name]["tokens"]:
                found = super().scalars(sums[name], part, whole)
                scalars |= {f"{key}/{name}": value for key, value in found.items()}
        return scalars
