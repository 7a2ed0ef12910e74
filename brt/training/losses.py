"""Positions of a segment that a training loss scores."""

import jax
import jax.numpy as jnp

LOSSES = ("full", "half")
"""Positions of a segment that are trained on: all, or the most recent half."""


def trained_weights(weights_BT: jax.Array, loss: str = "full") -> jax.Array:
    """Returns the weights of the positions a loss scores; "half": the first T // 2 count nothing.

    Source: Transformer-XL, section 4.2 (Table 5, after Al-Rfou et al. 2018, who score all).
    """
    T = weights_BT.shape[-1]
    return weights_BT if loss == "full" else weights_BT * (jnp.arange(T) >= T // 2)
