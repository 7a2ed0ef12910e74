"""The two-layer MLP with ReLU."""

from collections.abc import Callable

import jax
from flax import nnx
from jax.nn.initializers import zeros
from jax.typing import DTypeLike

from brt.models.fast.loop_weights import LoopWeights, cast_before, product
from brt.models.fast.norms import relu
from brt.models.layers.initializers import DENSE, Initializer, parameter


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

    def loop_weights(self, dtype: DTypeLike) -> dict[str, LoopWeights]:
        return {
            "hidden_DF": cast_before(self.hidden_DF[...], dtype),
            "output_FD": cast_before(self.output_FD[...], dtype),
        }

    def __call__(
        self,
        x_BTD: jax.Array,
        drop: Callable[[jax.Array], jax.Array] | None = None,
        weights: dict[str, LoopWeights] | None = None,
    ) -> jax.Array:
        """Returns (B, T, D); drop: applied to hidden units. weights: of `loop_weights`, or None."""
        weights = self.loop_weights(x_BTD.dtype) if weights is None else weights
        h_BTF = product("BTD,DF->BTF", x_BTD, weights["hidden_DF"])
        if self.biases:
            h_BTF = h_BTF + self.hidden_bias_F[...].astype(x_BTD.dtype)
        h_BTF = relu(h_BTF) if drop is None else drop(jax.nn.relu(h_BTF))
        y_BTD = product("BTF,FD->BTD", h_BTF, weights["output_FD"])
        return y_BTD + self.output_bias_D[...].astype(x_BTD.dtype) if self.biases else y_BTD
