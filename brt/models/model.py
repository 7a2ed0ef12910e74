"""The interface of a model; docs/extending.md has a runnable example."""

from typing import Any, Generic, Self, TypeVar

import jax
import numpy as np
from flax import nnx

from brt.models.arguments import CheckedMethods
from brt.models.layers.losses import token_losses

DTYPES = ("float32", "bfloat16")
Embedded = TypeVar("Embedded")
Outputs = TypeVar("Outputs")
Metrics = dict[str, jax.Array]
"""Scalars by name."""


class Model(CheckedMethods, nnx.Module, Generic[Embedded, Outputs]):
    """A model that processes segments: the base of all models.

    It holds parameters only. Its memory between segments is a tuple of named tuples that goes in
    and comes out (`brt/models/caches.py`). `Embedded` and `Outputs` are (B, T, D) arrays of a
    `LanguageModel`, and trees of arrays of other models.

    Attributes:
        vocabulary_size: V, ids that may be read and predicted.
        dropout: above 0 if the model needs keys in training.
        dtype: of activations.
    """

    vocabulary_size: int
    dropout: float
    dtype: np.dtype

    def for_segments(self, length: int) -> Self:
        """Returns the same model, with the same parameters, for segments of `length` tokens."""
        return self

    def init_caches(self, rows: int) -> tuple:
        """Returns the caches of `rows` new documents: the definition of "empty"."""
        raise NotImplementedError

    def embed(self, tokens_BT: jax.Array) -> Embedded:
        """Maps (B, T) ids, `BEGIN` before a document's first token, to (B, T, D) activations.

        Ids are not checked: one outside the vocabulary gives undefined results.
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

    def logits(self, x_BTD: Outputs) -> jax.Array:
        """Maps (..., D) outputs to (..., V) logits or log-probabilities, at least float32."""
        raise NotImplementedError

    def token_losses(self, x_BTD: Outputs, targets_BT: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns -log p of each target in nats, and whether it is the most likely; both (B, T)."""
        return token_losses(self.logits(x_BTD), targets_BT)

    def __call__(
        self, tokens_BT: jax.Array, caches: tuple, key: jax.Array | None = None
    ) -> tuple[jax.Array, tuple]:
        """Runs on (B, T) int32 ids; returns (B, T, V) logits and the caches after the segment."""
        with jax.named_scope("embedding"):
            x_BTD = self.embed(tokens_BT)
        y_BTD, caches, _ = self.stack(x_BTD, caches, key)
        with jax.named_scope("vocabulary"):
            return self.logits(y_BTD), caches

    def gradient_metrics(self, grads: dict) -> Metrics:
        """Returns scalars of a gradient, nested dictionaries as the parameters."""
        return {}

    def given_parameters(self) -> dict[str, Any]:
        """Returns initial parameters that are read from files, NumPy arrays by nested names."""
        return {}

    def flops_per_token(self) -> float:
        """Returns the operations of one token's forward pass; a multiply-add counts as two."""
        raise NotImplementedError

    def divided_sizes(self) -> dict[str, int]:
        """Returns the bindings whose sizes the model axis of a mesh must divide."""
        raise NotImplementedError


class LanguageModel(Model[jax.Array, jax.Array]):
    """A model that also decodes token by token: the base of all that generate text.

    The segment form of its caches exists between segments; the decoding form contains a segment or
    block that is being filled, each batch element at its own position.
    """

    @property
    def period(self) -> int:
        """P, the cache-update interval: tokens from one possible segment form to the next.

        The window; the segment length, if memories change after segments; or 1.
        """
        raise NotImplementedError

    def begin_decoding(self, caches: tuple) -> tuple:
        raise NotImplementedError

    def read_part(
        self, tokens_BT: jax.Array, caches: tuple, counts_B: jax.Array
    ) -> tuple[jax.Array, tuple]:
        """Runs on the beginning of an interval of every batch element, in one pass.

        Args:
            tokens_BT: (B, P) int32 ids, padding after the first `counts_B`.
            caches: the segment form.

        Returns:
            (B, P, V) logits, undefined for padding, and the decoding form, without the padding.
        """
        raise NotImplementedError

    def decode(
        self, tokens_B: jax.Array, caches: tuple, reads_B: jax.Array | bool = True
    ) -> tuple[jax.Array, tuple]:
        """Runs on one token of every batch element, each at its own position.

        Args:
            tokens_B: (B,) int32 ids. caches: the decoding form.
            reads_B: (B,) bool, batch elements that have a token; the caches of the others stay.

        Returns:
            (B, V) logits of the next token and the caches after this one.
        """
        raise NotImplementedError

    def end_decoding(self, caches: tuple) -> tuple:
        """Returns the segment form; every batch element must be at the end of an interval."""
        raise NotImplementedError

    def windows_reach(self) -> int:
        """Returns how many tokens back information is carried without a state or memory."""
        raise NotImplementedError

    def receptive_field(self) -> float:
        """Returns how many earlier tokens can influence a token; may be infinite."""
        raise NotImplementedError
