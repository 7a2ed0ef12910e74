"""The two-layer MLP with ReLU."""

from collections.abc import Callable
from typing import NamedTuple

import jax
from flax import nnx
from jax.nn.initializers import zeros
from jax.typing import DTypeLike

from brt.models.fast.products import JoinedMatrix
from brt.models.layers.initializers import DENSE, Initializer, parameter
from brt.models.ops import Matrix, dropped


class FeedForwardWeights(NamedTuple):
    hidden_DF: Matrix
    output_FD: Matrix


class FeedForward(nnx.Module):
    """relu(x hidden) output; sizes D, F, D (Block-Recurrent, section 4.1, without biases)."""

    def __init__(
        self,
        rngs: nnx.Rngs,
        width: int,
        hidden_size: int,
        initializer: Initializer = DENSE,
        biases: bool = False,
    ):
        self.hidden_DF = parameter(rngs, initializer, width, hidden_size)
        self.output_FD = parameter(rngs, initializer, hidden_size, width)
        self.biases = biases
        if biases:
            self.hidden_bias_F = parameter(rngs, zeros, hidden_size)
            self.output_bias_D = parameter(rngs, zeros, width)

    def weights(self, dtype: DTypeLike) -> FeedForwardWeights:
        return FeedForwardWeights(
            JoinedMatrix(self.hidden_DF[...], dtype), JoinedMatrix(self.output_FD[...], dtype)
        )

    def __call__(
        self,
        x_BTD: jax.Array,
        drop: Callable[[jax.Array], jax.Array] | None = None,
        weights: FeedForwardWeights | None = None,
        mask_PD: jax.Array | None = None,
    ) -> jax.Array:
        """Returns (B, T, D).

        drop: applied to hidden units. weights: of `weights`, or None. mask_PD: dropout of the
        result (`repeated_mask`).
        """
        weights = weights or self.weights(x_BTD.dtype)
        h_BTF = weights.hidden_DF("BTD,DF->BTF", x_BTD)
        if self.biases:
            h_BTF = h_BTF + self.hidden_bias_F[...].astype(x_BTD.dtype)
        h_BTF = jax.nn.relu(h_BTF)
        h_BTF = h_BTF if drop is None else drop(h_BTF)
        y_BTD = weights.output_FD("BTF,FD->BTD", h_BTF)
        if self.biases:
            y_BTD = y_BTD + self.output_bias_D[...].astype(x_BTD.dtype)
        return dropped(y_BTD, mask_PD)
