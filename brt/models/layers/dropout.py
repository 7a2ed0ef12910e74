"""Dropout masks, drawn once and shared along the axes where the published model shares them."""

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

PERIOD = 128


def keep_mask(
    key: jax.Array | None, rate: float, shape: tuple[int, ...], dtype: DTypeLike
) -> jax.Array | None:
    """Returns 0 where dropped, 1 / (1 - rate) where kept; None without a key or a rate."""
    if key is None or rate == 0.0:
        return None
    kept = jax.random.bernoulli(key, 1.0 - rate, shape)
    return kept.astype(dtype) / (1.0 - rate)


def dropout(x_BTD: jax.Array, rate: float, key: jax.Array | None) -> jax.Array:
    """Drops entries of (B, T, D); one mask for all rows, repeated every 128 tokens.

    Without a key (evaluation) or with rate 0 the input comes back unchanged.
    Source: Block-Recurrent, appendix C, for the rate; the released code for the sharing.
    """
    T, D = x_BTD.shape[1:]
    mask = keep_mask(key, rate, (1, min(T, PERIOD), D), x_BTD.dtype)
    if mask is None:
        return x_BTD
    repeats = -(-T // mask.shape[1])
    return x_BTD * jnp.tile(mask, (1, repeats, 1))[:, :T]


def independent_dropout(
    x_BTD: jax.Array, rate: float, key: jax.Array | None, variational: bool = False
) -> jax.Array:
    """Drops entries of (B, T, D) each for itself, or, variational, the same at every token.

    Source: Transformer-XL's released code; Gal and Ghahramani 2016, arXiv:1512.05287.
    """
    B, T, D = x_BTD.shape
    mask = keep_mask(key, rate, (B, 1, D) if variational else (B, T, D), x_BTD.dtype)
    return x_BTD if mask is None else x_BTD * mask
