"""The two-layer feed-forward network with ReLU and no biases."""

import jax
from flax import nnx

from brt.models.initializers import DENSE, parameter


class FeedForward(nnx.Module):
    """relu(x hidden) output (Block-Recurrent, section 4.1).

    Args:
        width: D.
        hidden_size: F.
    """

    def __init__(self, rngs: nnx.Rngs, width: int, hidden_size: int):
        self.hidden_DF = parameter(rngs, DENSE, width, hidden_size)
        self.output_FD = parameter(rngs, DENSE, hidden_size, width)

    def __call__(self, x_BTD):
        """(B, T, D) to (B, T, D), same type."""
        h_BTF = jax.nn.relu(x_BTD @ self.hidden_DF[...].astype(x_BTD.dtype))
        return h_BTF @ self.output_FD[...].astype(x_BTD.dtype)
