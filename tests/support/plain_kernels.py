"""Plain forms of the Pallas TPU kernels of attention, with the kernels' arguments and results."""

import jax
import jax.numpy as jnp

from brt.models.fast.kernels.parts import TILE, Heads, TileDropout, kept_tiles, seed_numbers
from brt.models.fast.kernels.window import Attended
from brt.models.ops import attention, scaled_down_heads, unit_heads
from brt.models.sizes import tile_size


def plain_window_attention(
    heads: Heads,
    with_keys: bool,
    q_BTA: jax.Array,
    k_BTA: jax.Array,
    v_BTA: jax.Array,
    cached_k_BWA: jax.Array,
    cached_v_BWA: jax.Array,
    scale_H: jax.Array,
    bias_HQX: jax.Array,
    keep: jax.Array | TileDropout | None = None,
) -> Attended:
    """Returns `window_attention`, block by block."""
    W, H, K = cached_k_BWA.shape[1], heads.num_heads, heads.head_size

    def split(x_BTA):
        return x_BTA.reshape(*x_BTA.shape[:2], H, K)

    q_BTHK, k_BTHK, v_BTHK = split(q_BTA), split(k_BTA), split(v_BTA)
    q_BTHK = unit_heads(q_BTHK) if heads.qk_norm else scaled_down_heads(q_BTHK)
    k_BTHK = unit_heads(k_BTHK) if heads.qk_norm else k_BTHK
    if isinstance(keep, TileDropout):
        keep = drawn_factors(keep, W // TILE + 1, by_keys=True)
    keys = jnp.concatenate([split(cached_k_BWA), k_BTHK], axis=1)
    values = jnp.concatenate([split(cached_v_BWA), v_BTHK], axis=1)
    tiles = []
    Q = tile_size(W)
    for start in range(0, q_BTA.shape[1], Q):
        seen = slice(start, start + W + Q)
        row = start % W
        factors = None if keep is None else keep[:, row : row + Q]
        parts = q_BTHK[:, start : start + Q], keys[:, seen], values[:, seen]
        tiles.append(attention(*parts, scale_H, bias_HQX, factors))
    last_keys, last_values = (x[:, -W:].reshape(cached_k_BWA.shape) for x in (keys, values))
    y_BTA = jnp.concatenate(tiles, axis=1).reshape(q_BTA.shape)
    keys_BTA = k_BTHK.reshape(k_BTA.shape) if with_keys else None
    return Attended(y_BTA, last_keys, last_values, keys_BTA)


def plain_block_attention(
    heads: Heads,
    q_BGQA: jax.Array,
    k_BGXA: jax.Array,
    v_BGXA: jax.Array,
    scale_H: jax.Array,
    keep: jax.Array | TileDropout | None = None,
) -> jax.Array:
    """Returns `block_attention`."""

    def split(x_BGQA):
        return x_BGQA.reshape(*x_BGQA.shape[:3], heads.num_heads, heads.head_size)

    q_BGQHK = split(q_BGQA)
    q_BGQHK = unit_heads(q_BGQHK) if heads.qk_norm else scaled_down_heads(q_BGQHK)
    if isinstance(keep, TileDropout):
        keep = drawn_factors(keep, k_BGXA.shape[2] // TILE)
    y = attention(q_BGQHK, split(k_BGXA), split(v_BGXA), scale_H, None, keep)
    return y.reshape(q_BGQA.shape)


def drawn_factors(dropout: TileDropout, blocks: int, by_keys: bool = False) -> jax.Array:
    """Returns the factors of the weights that an interpreted kernel draws, (H, N * TILE, X).

    blocks: of TILE keys, X = blocks * TILE. by_keys: the kernel's tiles have keys first.
    """
    interpreted = Heads(len(dropout.seeds_HN2), TILE, interpret=True)

    def of_tile(seeds_2):
        kept = kept_tiles(interpreted, dropout.rate, seeds_2, 0)
        tiles = (kept(block).T if by_keys else kept(block) for block in range(blocks))
        return jnp.concatenate([*tiles], axis=1) / (1 - dropout.rate)

    seeds_HN2 = seed_numbers(dropout).reshape(dropout.seeds_HN2.shape)
    factors_HNQX = jax.vmap(jax.vmap(of_tile))(seeds_HN2)
    return factors_HNQX.reshape(len(factors_HNQX), -1, blocks * TILE)
