"""Dropout masks, shared along axes as in the published models."""

import jax

from brt.models.ops import dropped, keep_mask, repeated_mask


def split_key(key: jax.Array | None, rate: float, number: int) -> list[jax.Array | None]:
    """Returns `number` dropout keys, all None without a key or a rate."""
    return [None] * number if key is None or not rate else list(jax.random.split(key, number))


def dropout(x_BTD: jax.Array, rate: float, key: jax.Array | None) -> jax.Array:
    """Drops entries of (B, T, D) with one mask for all batch elements, repeated every 128 tokens.

    Source: Block-Recurrent, appendix C, and the released code.
    """
    _, T, D = x_BTD.shape
    return dropped(x_BTD, repeated_mask(key, rate, T, D, x_BTD.dtype))


def independent_dropout(
    x_BTD: jax.Array, rate: float, key: jax.Array | None, variational: bool = False
) -> jax.Array:
    """Drops entries of (B, T, D) independently; variational: the same at every token.

    Source: Transformer-XL's released code; Gal and Ghahramani 2016, arXiv:1512.05287.
    """
    B, T, D = x_BTD.shape
    mask = keep_mask(key, rate, (B, 1, D) if variational else (B, T, D), x_BTD.dtype)
    return x_BTD if mask is None else x_BTD * mask
