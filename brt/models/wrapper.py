"""The base of models around another model."""

from typing import Any

import numpy as np
from flax import nnx


class Wrapper(nnx.Module):
    """A model around another one, whose vocabulary, dropout and activation type it has."""

    body: Any
    vocabulary_size: int
    dropout: float

    def wrap(self, body: Any) -> None:
        self.body = body
        self.vocabulary_size = body.vocabulary_size
        self.dropout = body.dropout

    @property
    def dtype(self) -> np.dtype:
        """Of activations."""
        return self.body.dtype

    @dtype.setter
    def dtype(self, dtype: np.dtype) -> None:
        self.body.dtype = dtype
