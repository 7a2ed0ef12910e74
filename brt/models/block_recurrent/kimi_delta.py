"""Kimi Delta memory: a gated delta memory with a decay for each channel of the keys."""

import math

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from brt.checks import configurable
from brt.models.block_recurrent.gated_delta import (
    CHANNEL_BLOCK,
    GatedDeltaMemory,
    block_length,
    rule_flops,
)
from brt.models.layers.initializers import DENSE, parameter
from brt.models.ops import projected
from brt.models.sizes import Sizes


class ChannelDecays:
    """Decays of channels, exp(-exp(r) softplus(W_u W_d x + c)), of a memory or a layer.

    r is a rate of each head; the matrices have rank K.
    """

    sizes: Sizes

    def add_decays(self, rngs: nnx.Rngs) -> None:
        D, H, K = self.sizes.width, self.sizes.num_heads, self.sizes.head_size
        self.decay_down_DK = parameter(rngs, DENSE, D, K)
        self.decay_up_KA = parameter(rngs, DENSE, K, H * K)
        self.decay_bias_A = parameter(rngs, decay_biases, H * K)
        self.decay_rate_H = parameter(rngs, decay_rates, H)

    def log_decays(self, x_BTD: jax.Array) -> jax.Array:
        up_BTA = low_rank(x_BTD, self.decay_down_DK[...], self.decay_up_KA[...])
        return channel_decays(up_BTA, self.decay_bias_A[...], self.decay_rate_H[...])


@configurable(denylist=["rngs", "sizes", "window"])
class KimiDeltaMemory(ChannelDecays, GatedDeltaMemory):
    """S_t = (I - b_t k_t k_t^T) Diag(a_t) S_{t-1} + b_t k_t v_t^T, read as q_t S_t.

    The decays a_t are `ChannelDecays`; the rest is as in `GatedDeltaMemory`.

    Source: Kimi Linear, Kimi Team 2025, arXiv:2510.26692, section 3.
    """

    name = "kimi_delta"

    def flops_per_token(self, window: int) -> float:
        D, A, K = self.sizes.width, self.sizes.attention_size, self.sizes.head_size
        gates = 2 * (D * K + K * A + D * self.sizes.num_heads)
        return gates + channel_flops(self.sizes)


def channel_flops(sizes: Sizes) -> float:
    """Returns the operations of `delta_rule` for a token: log2(W) times two products for decays."""
    W = block_length(sizes.head_size, CHANNEL_BLOCK)
    decays = math.log2(W) * (4 * W + 9) * sizes.attention_size
    return rule_flops(sizes, CHANNEL_BLOCK) + decays


def low_rank(x_BTD: jax.Array, down_DK: jax.Array, up_KA: jax.Array) -> jax.Array:
    """Returns x W_d W_u, (B, T, A), at least float32; products in the type of x."""
    return projected(x_BTD @ down_DK.astype(x_BTD.dtype), up_KA)


def channel_decays(x_BTA: jax.Array, bias_A: jax.Array, rate_H: jax.Array) -> jax.Array:
    """Returns -exp(rate) softplus(x + bias), logarithms of decays, (B, T, H, K)."""
    soft_BTA = jax.nn.softplus(x_BTA + bias_A)
    return -jnp.exp(rate_H)[:, None] * soft_BTA.reshape(*x_BTA.shape[:2], len(rate_H), -1)


def decay_rates(key: jax.Array, shape: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
    """Returns logarithms of rates from 1 to 16."""
    return jnp.log(jax.random.uniform(key, shape, dtype, 1.0, 16.0))


def decay_biases(key: jax.Array, shape: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
    """Returns biases whose softplus is log-uniform in 0.001 ... 0.1."""
    soft = jnp.exp(jax.random.uniform(key, shape, dtype, math.log(0.001), math.log(0.1)))
    return jnp.log(jnp.expm1(soft))
