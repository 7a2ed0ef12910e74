"""Gated delta, Kimi Delta and linear attention as layers without softmax attention.

A short causal convolution and SiLU come before the memory's rule, an RMS norm and a gate of each
head after it (`ConvolvedMemory`).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from brt.checks import configurable
from brt.models.block_recurrent.associative_memory import features
from brt.models.block_recurrent.gated_delta import (
    HEAD_BLOCK,
    blocks_first,
    blocks_joined,
    decays_and_steps,
    head_flops,
    rule_flops,
    rule_of,
)
from brt.models.block_recurrent.kimi_delta import (
    ChannelDecays,
    channel_decays,
    channel_flops,
    decay_biases,
    decay_rates,
    low_rank,
)
from brt.models.block_recurrent.memory import LayerTokens, Metrics, TokenMemory
from brt.models.counts import matrix_size
from brt.models.fast.products import matmul
from brt.models.layers.initializers import DENSE, parameter
from brt.models.ops import (
    at_least_float32,
    joined_heads,
    projected,
    rms_normed,
    scaled_down_heads,
    unit_heads,
)
from brt.models.sizes import Sizes

TAPS = 4
"""Tokens that a short convolution sees, with the current one."""
Heads = tuple[jax.Array, jax.Array, jax.Array]


class ConvolvedCache(NamedTuple):
    """The matrix of each head, at least float32, and the convolutions' earlier inputs.

    queries, keys, values: projections of the last `TAPS` - 1 tokens, in the type of activations.
    Empty: zeros.
    """

    matrix_BHKK: jax.Array
    queries_BNA: jax.Array
    keys_BNA: jax.Array
    values_BNA: jax.Array


class ConvolvedMemory(TokenMemory):
    """W_o (gate(x) * RMSNorm(rule(q, k, v))); q, k, v = SiLU(convolution(W x)), for each head.

    A subclass defines `shaped` and `rule`, its parameters in `add_rule`, and may define `add_gate`
    and `gate`.
    """

    in_residual = True
    replaces_attention = True
    affine = True

    def __init__(self, rngs: nnx.Rngs, sizes: Sizes, window: int):
        D, A = sizes.width, sizes.attention_size
        self.sizes = sizes
        self.queries_DA = parameter(rngs, DENSE, D, A)
        self.keys_DA = parameter(rngs, DENSE, D, A)
        self.values_DA = parameter(rngs, DENSE, D, A)
        self.query_taps_OA = parameter(rngs, taps, TAPS, A)
        self.key_taps_OA = parameter(rngs, taps, TAPS, A)
        self.value_taps_OA = parameter(rngs, taps, TAPS, A)
        self.add_rule(rngs)
        self.add_gate(rngs)
        self.norm_K = parameter(rngs, jax.nn.initializers.ones, sizes.head_size)
        self.output_AD = parameter(rngs, DENSE, A, D)

    def add_rule(self, rngs: nnx.Rngs) -> None:
        """Creates the parameters of `rule`, if any."""

    def add_gate(self, rngs: nnx.Rngs) -> None:
        """Creates the parameters of `gate`."""
        self.gate_DA = parameter(rngs, DENSE, self.sizes.width, self.sizes.attention_size)

    def shaped(self, q_BTHK: jax.Array, k_BTHK: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns the queries that read a matrix as q S, and the keys for `rule`."""
        raise NotImplementedError

    def rule(
        self, matrix_BHKK: jax.Array, heads: Heads, x_BTD: jax.Array, real_BT: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Returns the matrix after T tokens, and the values read, (B, T, H, K), float32.

        heads: of `heads`. real_BT: False for padding.
        """
        raise NotImplementedError

    def gate(self, x_BTD: jax.Array) -> jax.Array:
        """Returns the factor of each output, (B, T, A), at least float32."""
        return jax.nn.silu(projected(x_BTD, self.gate_DA[...]))

    def init_cache(self, rows: int, dtype: DTypeLike) -> ConvolvedCache:
        H, K, A = self.sizes.num_heads, self.sizes.head_size, self.sizes.attention_size
        matrix_BHKK = jnp.zeros((rows, H, K, K), jnp.promote_types(dtype, jnp.float32))
        return ConvolvedCache(matrix_BHKK, *[jnp.zeros((rows, TAPS - 1, A), dtype)] * 3)

    def run(
        self,
        cache: ConvolvedCache,
        tokens: LayerTokens,
        attended_BTHK: jax.Array,
        real_BT: jax.Array,
    ) -> tuple[jax.Array, ConvolvedCache, Metrics]:
        """Returns the output before the residual, (B, T, D), without using `attended_BTHK`."""
        x_BTD = tokens.inputs_BTD
        heads, carried = self.heads(cache, x_BTD, real_BT)
        matrix_BHKK, read_BTHK = self.rule(cache.matrix_BHKK, heads, x_BTD, real_BT)
        # A norm has no derivative at zero.
        state_norm = jnp.sqrt(jnp.mean(jnp.square(jax.lax.stop_gradient(matrix_BHKK))))
        after = ConvolvedCache(matrix_BHKK, *carried)
        return self.output(read_BTHK, x_BTD), after, {"state_norm": state_norm}

    def heads(
        self, cache: ConvolvedCache, x_BTD: jax.Array, real_BT: jax.Array
    ) -> tuple[Heads, list[jax.Array]]:
        """Returns queries, keys and values, (B, T, H, K), float32, and the next carried inputs."""
        count_B = jnp.sum(real_BT, axis=1)
        heads, carried = [], []
        for projection_DA, taps_OA, before_BNA in (
            (self.queries_DA, self.query_taps_OA, cache.queries_BNA),
            (self.keys_DA, self.key_taps_OA, cache.keys_BNA),
            (self.values_DA, self.value_taps_OA, cache.values_BNA),
        ):
            x_BTA = matmul(x_BTD, projection_DA[...])
            seen_BTA = jnp.concatenate([before_BNA, x_BTA], axis=1)
            y_BTA = jax.nn.silu(convolved(seen_BTA, taps_OA[...]))
            heads.append(y_BTA.reshape(*y_BTA.shape[:2], self.sizes.num_heads, -1))
            carried.append(last_inputs(seen_BTA, count_B))
        q_BTHK, k_BTHK, v_BTHK = heads
        return (*self.shaped(q_BTHK, k_BTHK), v_BTHK), carried

    def output(self, read_BTHK: jax.Array, x_BTD: jax.Array) -> jax.Array:
        """Returns the output, (B, T, D), of the values read."""
        normed_BTA = joined_heads(rms_normed(read_BTHK, self.norm_K[...]))
        gated_BTA = (normed_BTA * self.gate(x_BTD)).astype(x_BTD.dtype)
        return matmul(gated_BTA, self.output_AD[...])

    def flops_per_token(self, window: int) -> float:
        return 2.0 * matrix_size(self) + self.rule_flops()

    def rule_flops(self) -> float:
        """Returns the operations of `rule` for a token, without parameters."""
        raise NotImplementedError


def convolved(seen_BTA: jax.Array, taps_OA: jax.Array) -> jax.Array:
    """Returns sum_o taps[o] x[t - TAPS + 1 + o] of each channel, at least float32.

    seen_BTA: the `TAPS` - 1 earlier tokens, and the T tokens of the result.
    """
    seen_BTA = at_least_float32(seen_BTA)
    T = seen_BTA.shape[1] - TAPS + 1
    shifted = (seen_BTA[:, o : o + T] * taps_OA[o] for o in range(TAPS))
    return sum(shifted, start=jnp.zeros((), seen_BTA.dtype))


def last_inputs(seen_BTA: jax.Array, count_B: jax.Array) -> jax.Array:
    """Returns the last `TAPS` - 1 inputs, (B, N, A), where `count_B` of the T tokens are real."""

    def last(seen_TA, count):
        return jax.lax.dynamic_slice_in_dim(seen_TA, count, TAPS - 1)

    return jax.vmap(last)(seen_BTA, count_B)


def taps(key: jax.Array, shape: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
    """Returns uniform values in +-TAPS**-0.5, as for a PyTorch convolution."""
    return jax.random.uniform(key, shape, dtype, -(TAPS**-0.5), TAPS**-0.5)


@configurable(denylist=["rngs", "sizes", "window"])
class GatedDeltaLayer(ConvolvedMemory):
    """S_t = a_t S_{t-1} + b_t k_t (v_t - a_t k_t S_{t-1}), read as q_t S_t / sqrt(K), SiLU gate.

    For each head, decay a_t = exp(-exp(r) softplus(W_a x + c)) and step b_t = sigmoid(W_b x);
    queries and keys have unit length after the convolution.

    Source: Gated DeltaNet, Yang et al. 2024, arXiv:2412.06464, section 3.4 and figure 1.
    """

    name = "gated_delta_layer"

    def add_rule(self, rngs: nnx.Rngs) -> None:
        self.add_decays(rngs)
        self.step_DH = parameter(rngs, DENSE, self.sizes.width, self.sizes.num_heads)

    def add_decays(self, rngs: nnx.Rngs) -> None:
        """Creates the parameters of `log_decays`."""
        H = self.sizes.num_heads
        self.decay_DH = parameter(rngs, DENSE, self.sizes.width, H)
        self.decay_bias_H = parameter(rngs, decay_biases, H)
        self.decay_rate_H = parameter(rngs, decay_rates, H)

    def log_decays(self, x_BTD: jax.Array) -> jax.Array:
        """Returns logarithms of decays, (B, T, H), or of each channel (B, T, H, K); float32."""
        x_BTH = projected(x_BTD, self.decay_DH[...])
        return channel_decays(x_BTH, self.decay_bias_H[...], self.decay_rate_H[...])[..., 0]

    def shaped(self, q_BTHK: jax.Array, k_BTHK: jax.Array) -> tuple[jax.Array, jax.Array]:
        return scaled_down_heads(unit_heads(q_BTHK)), unit_heads(k_BTHK)

    def rule(
        self, matrix_BHKK: jax.Array, heads: Heads, x_BTD: jax.Array, real_BT: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        decay_step = decays_and_steps(self.log_decays(x_BTD), x_BTD, self.step_DH[...], real_BT)
        return rule_of(self.sizes, x_BTD.dtype)(matrix_BHKK, (*heads, *decay_step))

    def rule_flops(self) -> float:
        return rule_flops(self.sizes) + head_flops(self.sizes)


@configurable(denylist=["rngs", "sizes", "window"])
class KimiDeltaLayer(ChannelDecays, GatedDeltaLayer):
    """A `GatedDeltaLayer` with `ChannelDecays` and a sigmoid gate of rank K.

    Source: Kimi Linear, Kimi Team 2025, arXiv:2510.26692, section 4.
    """

    name = "kimi_delta_layer"

    def add_gate(self, rngs: nnx.Rngs) -> None:
        D, K, A = self.sizes.width, self.sizes.head_size, self.sizes.attention_size
        self.gate_down_DK = parameter(rngs, DENSE, D, K)
        self.gate_up_KA = parameter(rngs, DENSE, K, A)

    def gate(self, x_BTD: jax.Array) -> jax.Array:
        return jax.nn.sigmoid(low_rank(x_BTD, self.gate_down_DK[...], self.gate_up_KA[...]))

    def rule_flops(self) -> float:
        return channel_flops(self.sizes)


@configurable(denylist=["rngs", "sizes", "window"])
class LinearAttentionLayer(ConvolvedMemory):
    """S_t = S_{t-1} + f(k_t) v_t, read as f(q_t) S_t, f(x) = elu(x) + 1, with a SiLU gate.

    The output norm replaces the division by f(q_t) sum_i f(k_i), a factor of a head's result.

    Source: Katharopoulos et al. 2020, arXiv:2006.16236, section 3.4; the norm: Qin et al. 2022,
    arXiv:2210.10340.
    """

    name = "linear_attention_layer"

    def shaped(self, q_BTHK: jax.Array, k_BTHK: jax.Array) -> tuple[jax.Array, jax.Array]:
        return features(q_BTHK), features(k_BTHK)

    def rule(
        self, matrix_BHKK: jax.Array, heads: Heads, x_BTD: jax.Array, real_BT: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        q_BTHK, k_BTHK, v_BTHK = heads
        inputs = q_BTHK, jnp.where(real_BT[..., None, None], k_BTHK, 0), v_BTHK
        T = q_BTHK.shape[1]
        q_GBWHK, k_GBWHK, v_GBWHK = blocks_first(inputs, min(T, HEAD_BLOCK))
        added_GBHKK = jnp.einsum("GBWHK,GBWHV->GBHKV", k_GBWHK, v_GBWHK)
        scores_GBHWJ = jnp.tril(jnp.einsum("GBWHK,GBJHK->GBHWJ", q_GBWHK, k_GBWHK))

        def add(before_BHKK, added_BHKK):
            return before_BHKK + added_BHKK, before_BHKK

        matrix_BHKK, before_GBHKK = jax.lax.scan(add, matrix_BHKK, added_GBHKK)
        read_GBWHK = jnp.einsum("GBWHK,GBHKV->GBWHV", q_GBWHK, before_GBHKK)
        read_GBWHK = read_GBWHK + jnp.einsum("GBHWJ,GBJHK->GBWHK", scores_GBHWJ, v_GBWHK)
        return matrix_BHKK, blocks_joined(read_GBWHK, T)

    def rule_flops(self) -> float:
        A = self.sizes.attention_size
        return 4.0 * A * self.sizes.head_size + 4.0 * A * HEAD_BLOCK
