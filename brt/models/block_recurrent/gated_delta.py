"""Gated delta memory: an associative matrix for each head that every token updates and reads."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from brt.checks import configurable
from brt.models.block_recurrent.memory import (
    LayerTokens,
    Metrics,
    TokenMemory,
    mix_with_attention,
)
from brt.models.layers.initializers import DENSE, parameter
from brt.models.ops import at_least_float32, in_blocks, unit_heads
from brt.models.sizes import Sizes


class DeltaCache(NamedTuple):
    """The matrix of each head that maps keys to values, at least float32. Empty: zeros."""

    matrix_BHKK: jax.Array

    def clear_state(self, empty: "DeltaCache") -> "DeltaCache":
        return empty


@configurable(denylist=["rngs", "sizes", "window"])
class GatedDeltaMemory(TokenMemory):
    """S_t = a_t S_{t-1} + b_t k_t (v_t - a_t k_t S_{t-1}), read as q_t S_t, mixed with attention.

    The decay a_t = exp(-softplus(W_a x + c)) and the step b_t = sigmoid(W_b x) of each head depend
    on the layer's input x; queries and keys have unit length.

    Source: Gated DeltaNet, Yang et al. 2024, arXiv:2412.06464, sections 3.1 and 3.3.
    """

    name = "gated_delta"

    def __init__(self, rngs: nnx.Rngs, sizes: Sizes, window: int):
        H = sizes.num_heads
        self.sizes = sizes
        self.window = window
        self.decay_DH = parameter(rngs, DENSE, sizes.width, H)
        self.decay_bias_H = parameter(rngs, jax.nn.initializers.constant(-4.0), H)
        self.step_DH = parameter(rngs, DENSE, sizes.width, H)
        self.mix_H = parameter(rngs, jax.nn.initializers.zeros, H)

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
        """Runs `delta_block` on one block after another; a block may be one token."""
        x_BTD, real_BT1 = tokens.inputs_BTD, real_BT[..., None]
        log_decay_BTH = x_BTD @ self.decay_DH[...].astype(x_BTD.dtype) + self.decay_bias_H[...]
        log_decay_BTH = -jax.nn.softplus(at_least_float32(log_decay_BTH))
        step_BTH = jax.nn.sigmoid(at_least_float32(x_BTD @ self.step_DH[...].astype(x_BTD.dtype)))
        q_BTHK, k_BTHK = tokens.queries_BTHK, tokens.keys_BTHK
        if not self.sizes.qk_norm:
            q_BTHK, k_BTHK = unit_heads(q_BTHK), unit_heads(k_BTHK)
        decay_step = (jnp.where(real_BT1, x, 0) for x in (log_decay_BTH, step_BTH))
        length = min(x_BTD.shape[1], self.window)
        by_block = tuple(
            jnp.moveaxis(in_blocks(at_least_float32(x_BT), length), 1, 0)
            for x_BT in (q_BTHK, k_BTHK, tokens.values_BTHK, *decay_step)
        )
        matrix_BHKK, read_GBWHK = jax.lax.scan(delta_block, cache.matrix_BHKK, by_block)
        memory_BTHK = jnp.moveaxis(read_GBWHK, 0, 1).reshape(attended_BTHK.shape)
        mixed_BTHK, metrics = mix_with_attention(self.mix_H[...], attended_BTHK, memory_BTHK)
        return mixed_BTHK, DeltaCache(matrix_BHKK), metrics

    def flops_per_token(self, window: int) -> float:
        """Counts three products with the matrix, four within the block, and the inverse."""
        A, K = self.sizes.attention_size, self.sizes.head_size
        gates = 4 * self.sizes.width * self.sizes.num_heads
        inverse = self.sizes.num_heads * window**2 * 2 / 3
        return gates + 6.0 * A * K + 8.0 * A * window + inverse


def delta_block(
    matrix_BHKK: jax.Array, inputs: tuple[jax.Array, ...]
) -> tuple[jax.Array, jax.Array]:
    """Returns the memory after a block, and the values that tokens read, (B, W, H, K).

    inputs: queries, keys and values, (B, W, H, K); logarithms of decays, and steps, (B, W, H). A
    stored value depends on those before it: a triangular system of W equations for each head
    (section 3.3), instead of W steps.
    """
    q_BWHK, k_BWHK, v_BWHK, log_decay_BWH, step_BWH = inputs
    log_BHW = jnp.moveaxis(jnp.cumsum(log_decay_BWH, axis=1), 1, 2)
    step_BHW = jnp.moveaxis(step_BWH, 1, 2)
    before_WW = jnp.tri(log_BHW.shape[2], dtype=bool)
    decay_BHWJ = jnp.exp(
        jnp.where(before_WW, log_BHW[..., :, None] - log_BHW[..., None, :], -jnp.inf)
    )
    since_BHW1 = jnp.exp(log_BHW)[..., None]
    products_BHWJ = jnp.einsum("BWHK,BJHK->BHWJ", k_BWHK, k_BWHK)
    system_BHWJ = step_BHW[..., None] * decay_BHWJ * products_BHWJ
    old_BHWK = since_BHW1 * jnp.einsum("BWHK,BHKV->BHWV", k_BWHK, matrix_BHKK)
    new_BHWK = step_BHW[..., None] * (jnp.moveaxis(v_BWHK, 1, 2) - old_BHWK)
    stored_BHWK = inverse_of_unit_lower(system_BHWJ[:, :, None])[:, :, 0] @ new_BHWK
    scores_BHWJ = decay_BHWJ * jnp.einsum("BWHK,BJHK->BHWJ", q_BWHK, k_BWHK)
    read_BHWK = since_BHW1 * jnp.einsum("BWHK,BHKV->BHWV", q_BWHK, matrix_BHKK)
    read_BHWK = read_BHWK + scores_BHWJ @ stored_BHWK
    last_BHW = jnp.exp(log_BHW[..., -1:] - log_BHW)
    matrix_BHKK = since_BHW1[:, :, -1:] * matrix_BHKK + jnp.einsum(
        "BWHK,BHW,BHWV->BHKV", k_BWHK, last_BHW, stored_BHWK
    )
    return matrix_BHKK, jnp.moveaxis(read_BHWK, 1, 2)


def inverse_of_unit_lower(x_BHNWW: jax.Array) -> jax.Array:
    """Returns inverses of I + L; L is the part of `x_BHNWW` (B, H, N, W, W) below its diagonal.

        [[A, 0], [C, D]]^-1 = [[A^-1, 0], [-D^-1 C A^-1, D^-1]]

    Only products of matrices: on CPUs of several cores jax 0.10's `solve_triangular` can hang, when
    solves of one step wait for the threads that the others hold.
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
