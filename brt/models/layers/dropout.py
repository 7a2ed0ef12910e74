"""Dropout masks, shared along the axes along which the published models share them."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from brt.models.layers.sizes import TILE, Sizes

PERIOD = 128
"""Tokens after which a mask repeats, as in the released code."""


@dataclasses.dataclass(frozen=True)
class TileDropout:
    """Dropout of attention weights in a kernel, which draws the factors of a tile of queries.

    seeds_HN2: (H, N, 2) uint32, for each head and each of the N tiles of a window.
    """

    seeds_HN2: jax.Array
    rate: float


jax.tree_util.register_dataclass(TileDropout, ["seeds_HN2"], ["rate"])


class LayerMasks(NamedTuple):
    """The dropout masks of a layer, the same for all batch elements and blocks; None: no dropout.

    normed_PD, mlp_PD: of the outputs of attention norm and MLP, repeated along the tokens.
    weights_HWJ, state_weights_HWS: of attention weights, at least float32, or what draws them.
    """

    normed_PD: jax.Array | None = None
    weights_HWJ: jax.Array | TileDropout | None = None
    state_weights_HWS: jax.Array | TileDropout | None = None
    mlp_PD: jax.Array | None = None


def draw_masks(
    key: jax.Array | None,
    rate: float,
    sizes: Sizes,
    tokens: int,
    window: int,
    num_states: int | None,
    dtype: DTypeLike,
    keys: int | None = None,
    tiled_states: bool = False,
) -> LayerMasks:
    """Draws the masks of a layer; none without a key.

    num_states: S, or None. keys: J of the window's weights, by default 2W; if fewer, a kernel draws
    the factors of each tile of J - W queries. tiled_states: a kernel draws those of the states'.
    """
    if key is None:
        return LayerMasks()
    normed_key, weights_key, states_key, mlp_key = jax.random.split(key, 4)
    H, D = sizes.num_heads, sizes.width

    def of_weights(key, keys):
        return keep_mask(key, rate, (H, window, keys), jnp.promote_types(dtype, jnp.float32))

    with jax.named_scope("attention"):
        normed_PD = repeated_mask(normed_key, rate, tokens, D, dtype)
        if keys is None or keys == 2 * window:
            weights_HWJ = of_weights(weights_key, 2 * window)
        else:
            weights_HWJ = tile_dropout(weights_key, rate, H, window // (keys - window))
    with jax.named_scope("states"):
        if num_states is None:
            state_weights_HWS = None
        elif tiled_states:
            state_weights_HWS = tile_dropout(states_key, rate, H, window // TILE)
        else:
            state_weights_HWS = of_weights(states_key, num_states)
    with jax.named_scope("feed_forward"):
        mlp_PD = repeated_mask(mlp_key, rate, tokens, D, dtype)
    return LayerMasks(normed_PD, weights_HWJ, state_weights_HWS, mlp_PD)


def tile_dropout(key: jax.Array, rate: float, num_heads: int, tiles: int) -> TileDropout | None:
    return TileDropout(jax.random.bits(key, (num_heads, tiles, 2)), rate) if rate else None


def split_key(key: jax.Array | None, rate: float, number: int) -> list[jax.Array | None]:
    """Returns `number` dropout keys, all None without a key or a rate."""
    return [None] * number if key is None or not rate else list(jax.random.split(key, number))


def keep_mask(
    key: jax.Array | None, rate: float, shape: tuple[int, ...], dtype: DTypeLike
) -> jax.Array | None:
    """Returns 0 where dropped, 1 / (1 - rate) where kept; None without a key or a rate."""
    if key is None or rate == 0.0:
        return None
    kept = jax.random.bernoulli(key, 1.0 - rate, shape)
    return kept.astype(dtype) / (1.0 - rate)


def dropout(x_BTD: jax.Array, rate: float, key: jax.Array | None) -> jax.Array:
    """Drops entries of (B, T, D) with one mask for all batch elements, repeated every 128 tokens.

    Source: Block-Recurrent, appendix C, and the released code.
    """
    _, T, D = x_BTD.shape
    return dropped(x_BTD, repeated_mask(key, rate, T, D, x_BTD.dtype))


def repeated_mask(
    key: jax.Array | None, rate: float, tokens: int, width: int, dtype: DTypeLike
) -> jax.Array | None:
    return keep_mask(key, rate, (min(tokens, PERIOD), width), dtype)


def dropped(x_BTD: jax.Array, mask_PD: jax.Array | None) -> jax.Array:
    if mask_PD is None:
        return x_BTD
    T = x_BTD.shape[1]
    repeats = -(-T // len(mask_PD))
    return x_BTD * jnp.tile(mask_PD, (repeats, 1))[:T]


def independent_dropout(
    x_BTD: jax.Array, rate: float, key: jax.Array | None, variational: bool = False
) -> jax.Array:
    """Drops entries of (B, T, D) independently; variational: the same at every token.

    Source: Transformer-XL's released code; Gal and Ghahramani 2016, arXiv:1512.05287.
    """
    B, T, D = x_BTD.shape
    mask = keep_mask(key, rate, (B, 1, D) if variational else (B, T, D), x_BTD.dtype)
    return x_BTD if mask is None else x_BTD * mask
