"""Models around another model."""

from typing import Any

import jax
import numpy as np
from flax import nnx

from brt.models.model import LanguageModel


class Wrapper(nnx.Module):
    """A model around another, with its vocabulary, dropout and activation type."""

    body: Any
    vocabulary_size: int
    dropout: float

    def wrap(self, body: Any) -> None:
        self.body = body
        self.vocabulary_size = body.vocabulary_size
        self.dropout = body.dropout

    def check_vocabulary(self, vocabulary: Any, binding: str) -> None:
        self.body.check_vocabulary(vocabulary, binding)

    def divided_sizes(self) -> dict[str, int]:
        return self.body.divided_sizes()

    def given_parameters(self) -> dict[str, Any]:
        parameters = self.body.given_parameters()
        return {"body": parameters} if parameters else {}

    @property
    def dtype(self) -> np.dtype:
        return self.body.dtype

    @dtype.setter
    def dtype(self, dtype: np.dtype) -> None:
        self.body.dtype = dtype


class LanguageModelWrapper(Wrapper, LanguageModel):
    """A wrapper with the inner model's embedding and predictions; P is the segment length."""

    segment_length: int

    @property
    def period(self) -> int:
        return self.segment_length

    def embed(self, tokens_BT: jax.Array) -> jax.Array:
        return self.body.embed(tokens_BT)

    def logits(self, x_BTD: jax.Array) -> jax.Array:
        return self.body.logits(x_BTD)

    def token_losses(self, x_BTD: jax.Array, targets_BT: jax.Array) -> tuple[jax.Array, jax.Array]:
        return self.body.token_losses(x_BTD, targets_BT)

    def weighted_losses(
        self, x_KBTD: jax.Array, targets_KBT: jax.Array, weights_KBT: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        return self.body.weighted_losses(x_KBTD, targets_KBT, weights_KBT)

    def windows_reach(self) -> int:
        return self.body.windows_reach()
