"""The interface of a model; docs/extending.md has a runnable example."""

from typing import Any, Generic, Self, TypeVar

import jax
import numpy as np

from brt.models.arguments import CheckedMethods
from brt.models.description import ModelDescription
from brt.models.layers.losses import token_losses

DTYPES = ("float32", "bfloat16")
REMATS = ("none", "layer")
Embedded = TypeVar("Embedded")
Outputs = TypeVar("Outputs")
Metrics = dict[str, jax.Array]


class Predictions(Generic[Outputs]):
    """Logits and losses of a model's outputs."""

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        # A base's losses would not use the logits, or token losses, that a subclass overrides.
        if "logits" in vars(cls) and "token_losses" not in vars(cls):
            cls.token_losses = Predictions.token_losses  # type: ignore[method-assign]
        if "token_losses" in vars(cls) and "weighted_losses" not in vars(cls):
            cls.weighted_losses = Predictions.weighted_losses  # type: ignore[method-assign]

    def logits(self, x_BTD: Outputs) -> jax.Array:
        """Maps (..., D) outputs to (..., V) logits or log-probabilities, at least float32."""
        raise NotImplementedError

    def token_losses(self, x_BTD: Outputs, targets_BT: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns -log p of each target in nats, and whether it is the most likely; both (B, T)."""
        return token_losses(self.logits(x_BTD), targets_BT)

    def weighted_losses(
        self, x_KBTD: Outputs, targets_KBT: jax.Array, weights_KBT: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Returns sums over K segments of weight times `token_losses`: nats, and correct tokens."""

        def sums(segment):
            x_BTD, targets_BT, weights_BT = segment
            nats_BT, correct_BT = self.token_losses(x_BTD, targets_BT)
            return (nats_BT * weights_BT).sum(), (correct_BT * weights_BT).sum()

        nats_K, correct_K = jax.lax.map(sums, (x_KBTD, targets_KBT, weights_KBT))
        return nats_K.sum(), correct_K.sum()


class Model(CheckedMethods, ModelDescription, Predictions[Outputs], Generic[Embedded, Outputs]):
    """A model that processes segments: the base of all models.

    It holds parameters only. Its memory between segments is a tuple of named tuples that is passed
    in and returned (`brt/models/caches.py`). `Embedded` and `Outputs` are (B, T, D) arrays in a
    `LanguageModel`, and trees of arrays in other models.

    Attributes:
        vocabulary_size: V, ids that may be read and predicted.
        dropout: above 0 if the model needs keys in training.
        dtype: of activations.
    """

    vocabulary_size: int
    dropout: float
    dtype: np.dtype

    def for_segments(self, length: int) -> Self:
        """Returns the model, with the same parameters, for segments of `length` tokens."""
        return self

    def init_caches(self, rows: int) -> tuple:
        """Returns the caches of `rows` new documents: the definition of "empty"."""
        raise NotImplementedError

    def embed(self, tokens_BT: jax.Array) -> Embedded:
        """Maps (B, T) ids, `BEGIN` before a document's first token, to (B, T, D) activations.

        Ids outside the vocabulary are not detected and give undefined results.
        """
        raise NotImplementedError

    def stack(
        self, x_BTD: Embedded, caches: tuple, key: jax.Array | None = None
    ) -> tuple[Outputs, tuple, Metrics]:
        """Runs all layers on one segment, with a dropout key or None.

        Returns:
            (B, T, D), the caches after the segment, and metrics; `added_nats` is added to the
            training loss.
        """
        raise NotImplementedError

    def __call__(
        self, tokens_BT: jax.Array, caches: tuple, key: jax.Array | None = None
    ) -> tuple[jax.Array, tuple]:
        """Runs on (B, T) int32 ids; returns (B, T, V) logits and the caches after the segment."""
        x_BTD, caches, _ = self.stack(self.embed(tokens_BT), caches, key)
        return self.logits(x_BTD), caches


class LanguageModel(Model[jax.Array, jax.Array]):
    """A model that also decodes token by token: the base of all that generate text.

    Caches have two forms. The segment form exists where memories are updated: at the start of a
    document, and after every interval of P tokens (`period`). The decoding form exists everywhere
    and also contains each batch element's tokens of an incomplete interval. A prompt is processed
    by segments as long as whole intervals remain, and then by `read_part`:
        caches = model(tokens_BT, model.init_caches(B))[1]
        logits_BTV, caches = model.read_part(tokens_BP, caches, counts_B)
        logits_BV, caches = model.decode(tokens_B, caches)
    """

    @property
    def period(self) -> int:
        """P, the cache-update interval in tokens.

        The window; the segment length, if memories change after segments; or 1, if memories are the
        same inside a segment as at its end.
        """
        raise NotImplementedError

    def begin_decoding(self, caches: tuple) -> tuple:
        """Returns the decoding form of a segment form, at the start of an interval."""
        raise NotImplementedError

    def read_part(
        self, tokens_BT: jax.Array, caches: tuple, counts_B: jax.Array
    ) -> tuple[jax.Array, tuple]:
        """Runs `begin_decoding` and `decode` for the first tokens of an interval, in one pass.

        Args:
            tokens_BT: (B, P) int32 ids, padding after the first `counts_B` of a batch element.

        Returns:
            (B, P, V) logits, undefined for padding, and the decoding form.
        """
        raise NotImplementedError

    def decode(
        self, tokens_B: jax.Array, caches: tuple, reads_B: jax.Array | bool = True
    ) -> tuple[jax.Array, tuple]:
        """Runs on one token of every batch element, each at its own position.

        Args:
            reads_B: (B,) bool, batch elements that have a token; the caches of the others stay.

        Returns:
            (B, V) logits of the next token and the caches after this one.
        """
        raise NotImplementedError

    def end_decoding(self, caches: tuple) -> tuple:
        """Returns the segment form; every batch element must be at the end of an interval."""
        raise NotImplementedError
