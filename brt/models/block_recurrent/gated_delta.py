"""Gated delta memory: an associative matrix for each head that every token updates and reads.

`delta_rule` serves decays of a head (`GatedDeltaMemory`) and of its channels (`KimiDeltaMemory`).
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from brt.checks import configurable
from brt.models.block_recurrent.memory import (
    LayerTokens,
    Metrics,
    TokenMemory,
    mix_with_attention,
)
from brt.models.fast import table
from brt.models.layers.initializers import DENSE, parameter
from brt.models.ops import at_least_float32, in_blocks, projected, unit_heads
from brt.models.sizes import Sizes


class DeltaCache(NamedTuple):
    """Each head's matrix from keys to values, at least float32. Empty: zeros."""

    matrix_BHKK: jax.Array


@configurable(denylist=["rngs", "sizes", "window"])
class GatedDeltaMemory(TokenMemory):
    """S_t = a_t S_{t-1} + b_t k_t (v_t - a_t k_t S_{t-1}), read as q_t S_t, mixed with attention.

    For each head, decay a_t = exp(-softplus(W_a x + c)) and step b_t = sigmoid(W_b x) of the
    layer's input x; queries and keys have unit length.

    Source: Gated DeltaNet, Yang et al. 2024, arXiv:2412.06464, sections 3.1 and 3.3.
    """

    name = "gated_delta"
    affine = True

    def __init__(self, rngs: nnx.Rngs, sizes: Sizes, window: int):
        self.sizes = sizes
        self.add_decays(rngs)
        self.step_DH = parameter(rngs, DENSE, sizes.width, sizes.num_heads)
        self.mix_H = parameter(rngs, jax.nn.initializers.zeros, sizes.num_heads)

    def add_decays(self, rngs: nnx.Rngs) -> None:
        """Creates the parameters of `log_decays`."""
        D, H = self.sizes.width, self.sizes.num_heads
        self.decay_DH = parameter(rngs, DENSE, D, H)
        self.decay_bias_H = parameter(rngs, jax.nn.initializers.constant(-4.0), H)

    def init_cache(self, rows: int, dtype: DTypeLike) -> DeltaCache:
        H, K = self.sizes.num_heads, self.sizes.head_size
        return DeltaCache(jnp.zeros((rows, H, K, K), jnp.promote_types(dtype, jnp.float32)))

    def run(
        self,
        cache: DeltaCache,
        tokens: LayerTokens,
        attended_BTHK: jax.Array,
        real_BT: jax.Array,
    ) -> tuple[jax.Array, DeltaCache, Metrics]:
        x_BTD = tokens.inputs_BTD
        q_BTHK, k_BTHK = tokens.queries_BTHK, tokens.keys_BTHK
        if not self.sizes.qk_norm:
            q_BTHK, k_BTHK = unit_heads(q_BTHK), unit_heads(k_BTHK)
        decay_step = decays_and_steps(self.log_decays(x_BTD), x_BTD, self.step_DH[...], real_BT)
        inputs = (*map(at_least_float32, (q_BTHK, k_BTHK, tokens.values_BTHK)), *decay_step)
        matrix_BHKK, memory_BTHK = rule_of(self.sizes, x_BTD.dtype)(cache.matrix_BHKK, inputs)
        mixed_BTHK, metrics = mix_with_attention(self.mix_H[...], attended_BTHK, memory_BTHK)
        return mixed_BTHK, DeltaCache(matrix_BHKK), metrics

    def log_decays(self, x_BTD: jax.Array) -> jax.Array:
        """Returns logarithms of decays, (B, T, H), or of each channel (B, T, H, K); float32."""
        return -jax.nn.softplus(projected(x_BTD, self.decay_DH[...]) + self.decay_bias_H[...])

    def flops_per_token(self, window: int) -> float:
        gates = 4 * self.sizes.width * self.sizes.num_heads
        return gates + rule_flops(self.sizes) + head_flops(self.sizes)


HEAD_BLOCK, CHANNEL_BLOCK = 64, 32
"""Most tokens of a block of `delta_rule`, with decays of heads or of channels."""


def block_length(head_size: int, most: int) -> int:
    """Returns the tokens W of a block, a power of 2 near K: its matrices are (W, W) and (K, K)."""
    return min(most, 1 << (head_size - 1).bit_length())


def rule_flops(sizes: Sizes, most: int = HEAD_BLOCK) -> float:
    """Returns the operations of `delta_rule` for a token, without its decays."""
    A, K, W = sizes.attention_size, sizes.head_size, block_length(sizes.head_size, most)
    return 6.0 * A * K + 6.0 * A * W + sizes.num_heads * W**2 * 2 / 3


def head_flops(sizes: Sizes) -> float:
    """Returns the operations of `products_by_head` for a token."""
    return 4.0 * sizes.attention_size * block_length(sizes.head_size, HEAD_BLOCK)


class Block(NamedTuple):
    """The part of a block of W tokens that does not depend on the matrix S before the block.

    A token stores u - w S for its key, and reads q S and its scores times the stored values.

    queries_BHXK: w, then q of all tokens, (B, H, 2 W, K).
    values_BHWK: u.
    keys_BHWK: decayed until the end of the block.
    kept_BHC: the decay of the whole block, of a head (C = 1) or of its channels (C = K).
    """

    queries_BHXK: jax.Array
    values_BHWK: jax.Array
    keys_BHWK: jax.Array
    kept_BHC: jax.Array


def decays_and_steps(
    log_decay: jax.Array, x_BTD: jax.Array, step_DH: jax.Array, real_BT: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns logarithms of decays, and steps sigmoid(W x), (B, T, H); 0 for padding."""
    step_BTH = jax.nn.sigmoid(projected(x_BTD, step_DH))
    real_BT1 = real_BT[..., None]
    real = real_BT1 if log_decay.ndim == 3 else real_BT1[..., None]
    return jnp.where(real, log_decay, 0), jnp.where(real_BT1, step_BTH, 0)


def rule_of(sizes: Sizes, dtype: DTypeLike) -> table.DeltaRule:
    """Returns the form of `delta_rule` for activations of `dtype`."""
    return functools.partial(table.delta_rule, sizes, dtype, delta_rule)


def delta_rule(matrix_BHKK: jax.Array, inputs: Sequence[jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Returns the memory after T tokens, and the values that they read, (B, T, H, K).

    inputs: of T tokens, as for `block_of`. Only two products depend on the memory before a block.
    """
    queries_BTHK, *_, log_decay, _ = inputs
    _, T, _, K = queries_BTHK.shape
    most = block_length(K, CHANNEL_BLOCK if log_decay.ndim == 4 else HEAD_BLOCK)
    length = 1 << (min(T, most) - 1).bit_length()
    blocks, scores_GBHWJ = jax.checkpoint(jax.vmap(block_of))(blocks_first(inputs, length))
    matrix_BHKK, (read_GBHWK, stored_GBHWK) = jax.lax.scan(after_block, matrix_BHKK, blocks)
    read_GBHWK = read_GBHWK + scores_GBHWJ @ stored_GBHWK
    return matrix_BHKK, blocks_joined(jnp.moveaxis(read_GBHWK, 2, 3), T)


def blocks_first(inputs: Sequence[jax.Array], length: int) -> tuple[jax.Array, ...]:
    """Splits (B, T, ...) into blocks of `length` tokens, (G, B, W, ...), zeros after the last."""

    def blocks(x_BT):
        ends = (0, 0), (0, -x_BT.shape[1] % length)
        padded_BT = jnp.pad(x_BT, [*ends, *[(0, 0)] * (x_BT.ndim - 2)])
        return jnp.moveaxis(in_blocks(padded_BT, length), 1, 0)

    return tuple(map(blocks, inputs))


def blocks_joined(x_GBWHK: jax.Array, tokens: int) -> jax.Array:
    """Joins blocks of `blocks_first` to (B, T, H, K)."""
    x_BGWHK = jnp.moveaxis(x_GBWHK, 0, 1)
    return x_BGWHK.reshape(len(x_BGWHK), -1, *x_BGWHK.shape[3:])[:, :tokens]


def block_of(inputs: tuple[jax.Array, ...]) -> tuple[Block, jax.Array]:
    """Returns the part of a block that does not depend on the memory, and scores (B, H, W, W).

    inputs: queries, keys and values, (B, W, H, K); logarithms of decays, (B, W, H) or of each
    channel (B, W, H, K); steps, (B, W, H). W is a power of 2. A token's stored value depends on
    earlier ones: a triangular system of W equations for each head (section 3.3), instead of W
    steps.
    """
    q_BHWK, k_BHWK, v_BHWK, log_decay, step_BHW = (jnp.moveaxis(x, 1, 2) for x in inputs)
    decayed = products_by_channel if log_decay.ndim == 4 else products_by_head
    products_BHWJ, scores_BHWJ, since_BHWC, until_BHWC = decayed(k_BHWK, q_BHWK, log_decay)
    system_BHWJ = step_BHW[..., None] * products_BHWJ
    inverse_BHWJ = inverse_of_unit_lower(system_BHWJ[:, :, None])[:, :, 0]
    since_BHWC = jnp.exp(since_BHWC)
    both_BHWK = jnp.concatenate([since_BHWC * k_BHWK, v_BHWK], axis=-1)
    solved_BHWK = inverse_BHWJ @ (step_BHW[..., None] * both_BHWK)
    w_BHWK, u_BHWK = jnp.split(solved_BHWK, [k_BHWK.shape[-1]], axis=-1)
    queries_BHXK = jnp.concatenate([w_BHWK, since_BHWC * q_BHWK], axis=2)
    kept_BHC = since_BHWC[:, :, -1]
    return Block(queries_BHXK, u_BHWK, jnp.exp(until_BHWC) * k_BHWK, kept_BHC), scores_BHWJ


def after_block(
    matrix_BHKK: jax.Array, block: Block
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """Returns the memory after a block, and its tokens' read and stored values, (B, H, W, K)."""
    both_BHXK = block.queries_BHXK @ matrix_BHKK
    taken_BHWK, read_BHWK = jnp.split(both_BHXK, 2, axis=2)
    stored_BHWK = block.values_BHWK - taken_BHWK
    matrix_BHKK = block.kept_BHC[..., None] * matrix_BHKK + block.keys_BHWK.mT @ stored_BHWK
    return matrix_BHKK, (read_BHWK, stored_BHWK)


def products_by_head(
    k_BHWK: jax.Array, q_BHWK: jax.Array, log_decay_BHW: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """`products_by_channel` with one decay for a head; logarithms are (B, H, W, 1)."""
    log_BHW = jnp.cumsum(log_decay_BHW, axis=2)
    before_WW = jnp.tri(log_BHW.shape[2], dtype=bool)
    decay_BHWJ = jnp.exp(
        jnp.where(before_WW, log_BHW[..., :, None] - log_BHW[..., None, :], -jnp.inf)
    )
    products_BHWJ, scores_BHWJ = (
        decay_BHWJ * jnp.einsum("BHWK,BHJK->BHWJ", x_BHWK, k_BHWK) for x_BHWK in (k_BHWK, q_BHWK)
    )
    until_BHW = log_BHW[..., -1:] - log_BHW
    return products_BHWJ, scores_BHWJ, log_BHW[..., None], until_BHW[..., None]


def products_by_channel(
    k_BHWK: jax.Array, q_BHWK: jax.Array, log_decay_BHWK: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Returns products of keys and of queries with the keys up to them, decayed in between.

    For halves of each part of 2, 4, ..., W tokens, a key decays until the end of the first half, a
    token of the second since its start. Logarithms are sums and never differences of longer sums,
    so no factor exceeds 1 or loses digits, however strong the decay.

    Returns:
        Products of keys and of queries, (B, H, W, W), 0 after the token; logarithms of decays since
        the start of the block, and until its end, (B, H, W, K).
    """
    W, K = k_BHWK.shape[2:]
    x_BHXWK = jnp.stack([k_BHWK, q_BHWK], axis=2)
    own_BHXW1 = jnp.sum(x_BHXWK * k_BHWK[:, :, None], axis=-1, keepdims=True)
    products_BHXWJ = jnp.where(np.eye(W, dtype=bool), own_BHXW1, 0)
    since_BHWK, until_BHWK = log_decay_BHWK, jnp.zeros_like(log_decay_BHWK)
    is_first = np.array([True, False])[:, None, None]
    half = 1
    while half < W:
        part_W = np.arange(W) // half
        second_W1 = part_W[:, None] % 2 == 1
        across_WJ = second_W1 & (part_W[:, None] == part_W + 1)
        decay_BHWK = jnp.exp(jnp.where(second_W1, since_BHWK, until_BHWK))
        found_BHXWJ = jnp.einsum(
            "BHXWK,BHJK->BHXWJ", x_BHXWK * decay_BHWK[:, :, None], k_BHWK * decay_BHWK
        )
        products_BHXWJ = jnp.where(across_WJ, found_BHXWJ, products_BHXWJ)
        halves = (*k_BHWK.shape[:2], W // (2 * half), 2, half, K)
        since, until = since_BHWK.reshape(halves), until_BHWK.reshape(halves)
        first, second = since[:, :, :, :1, -1:], since[:, :, :, 1:, -1:]
        since_BHWK = (since + jnp.where(is_first, 0, first)).reshape(k_BHWK.shape)
        until_BHWK = (until + jnp.where(is_first, second, 0)).reshape(k_BHWK.shape)
        half *= 2
    return products_BHXWJ[:, :, 0], products_BHXWJ[:, :, 1], since_BHWK, until_BHWK


def inverse_of_unit_lower(x_BHNWW: jax.Array) -> jax.Array:
    """Returns inverses of I + L; L is the part of `x_BHNWW` (B, H, N, W, W) below its diagonal.

        [[A, 0], [C, D]]^-1 = [[A^-1, 0], [-D^-1 C A^-1, D^-1]]

    Only matrix products: with several CPU cores jax 0.10's `solve_triangular` can hang, when solves
    of one step wait for each other's threads.
    """
    W = x_BHNWW.shape[-1]
    if W == 1:
        return jnp.ones_like(x_BHNWW)
    if W % 2:
        x_BHNWW = jnp.pad(x_BHNWW, [(0, 0)] * 3 + [(0, 1)] * 2)
    half = x_BHNWW.shape[-1] // 2
    diagonal = [x_BHNWW[..., :half, :half], x_BHNWW[..., half:, half:]]
    inverses = inverse_of_unit_lower(jnp.concatenate(diagonal, axis=2))
    a, d = jnp.split(inverses, 2, axis=2)
    left = jnp.concatenate([a, -d @ x_BHNWW[..., half:, :half] @ a], axis=-2)
    right = jnp.concatenate([jnp.zeros_like(d), d], axis=-2)
    return jnp.concatenate([left, right], axis=-1)[..., :W, :W]
