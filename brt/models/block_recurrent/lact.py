"""LaCT: each head's fast weights, trained by one step per block and read by later tokens."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.nn.initializers import constant, ones, zeros
from jax.typing import DTypeLike

from brt.checks import Count, configurable
from brt.models.block_recurrent.memory import LayerMemory, LayerTokens, Metrics, mix_with_attention
from brt.models.layers.initializers import DENSE, normal, parameter
from brt.models.ops import at_least_float32, projected, rms_normed, unit_heads
from brt.models.sizes import Sizes

BLOCK_RATE = 2.048
"""Sum of a new memory's rates over a block: the published 0.001 for each of 2,048 tokens."""

NEWTON_SCHULZ = (
    (4.0848, -6.8946, 2.9270),
    (3.9505, -6.3029, 2.6377),
    (3.7418, -5.5913, 2.3037),
    (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
)
"""Published coefficients of x, x^3 and x^5 of each iteration."""


class FastWeights(NamedTuple):
    """Matrices of f(x) = down (silu(gate x) * (up x)), with N hidden units, for each head."""

    gate_BHNK: jax.Array
    up_BHNK: jax.Array
    down_BHKN: jax.Array


class LactCache(NamedTuple):
    """Fast weights and their momentum, or None, at least float32. Empty: learned, and zeros."""

    weights: Any
    momentum: Any


class Pairs(NamedTuple):
    """The training data of a block.

    rates_BTHZ: learning rates of gate, up and down (Z = 3), float32.
    momentum_BTH: share of the momentum that a token would keep, float32; None: no momentum.
    """

    keys_BTHK: jax.Array
    values_BTHK: jax.Array
    rates_BTHZ: jax.Array
    momentum_BTH: jax.Array | None


@configurable(denylist=["rngs", "sizes", "window"])
class LactMemory(LayerMemory):
    """A SwiGLU MLP f whose weights w each block changes by one step on sum_t -v_t . f(k_t).

    The step is g = sum_t r_t (-dL_t / dw) + m g', with g' of the block before; rates r_t and the
    mean share m depend on the layer's inputs. Rows of w keep their initial lengths. A token reads
    norm(f(q_t)), with the weights from before its block, mixed with attention.

    Args:
        hidden_size: N, hidden units of a head's MLP; None: K.
        momentum: whether gradients accumulate; otherwise m = 0.
        muon: make the step nearly orthogonal. Its size is then independent of the rates, and small
            directions of g, with their rounding errors, are amplified.

    Source: LaCT, Zhang et al. 2025, arXiv:2505.23884, section 3.
    """

    name = "lact"

    def __init__(
        self,
        rngs: nnx.Rngs,
        sizes: Sizes,
        window: int,
        hidden_size: Count | None = None,
        momentum: bool = True,
        muon: bool = False,
    ):
        D, H, K = sizes.width, sizes.num_heads, sizes.head_size
        N = hidden_size or K
        self.sizes, self.hidden_size, self.momentum, self.muon = sizes, N, momentum, muon
        self.gate_HNK = parameter(rngs, normal(K**-0.5), H, N, K)
        self.up_HNK = parameter(rngs, normal(K**-0.5), H, N, K)
        self.down_HKN = parameter(rngs, normal(N**-0.5), H, K, N)
        self.rate_DZ = parameter(rngs, DENSE, D, 3 * H)
        first_rate = math.log(math.expm1(BLOCK_RATE / window))  # before softplus
        self.rate_bias_Z = parameter(rngs, constant(first_rate), 3 * H)
        if momentum:
            self.momentum_DH = parameter(rngs, DENSE, D, H)
            self.momentum_bias_H = parameter(rngs, zeros, H)
        self.norm_K = parameter(rngs, ones, K)
        self.mix_H = parameter(rngs, zeros, H)

    def initial(self, rows: int, dtype: DTypeLike) -> Any:
        """Returns the fast weights of new documents, in `dtype` or float32."""
        learned = self.gate_HNK[...], self.up_HNK[...], self.down_HKN[...]
        return FastWeights(*(stacked_rows(x, rows, dtype) for x in learned))

    def init_cache(self, rows: int, dtype: DTypeLike) -> Any:
        weights = self.initial(rows, dtype)
        momentum = jax.tree.map(jnp.zeros_like, weights) if self.momentum else None
        return LactCache(weights, momentum)

    def prepare(self, dtype: DTypeLike, key: jax.Array | None = None) -> Any:
        """Returns the row lengths of the initial weights."""
        return row_lengths(self.initial(1, dtype))

    def read(
        self, cache: Any, tokens: LayerTokens, attended_BTHK: jax.Array, weights: Any
    ) -> tuple[jax.Array, Metrics]:
        y_BTHK = self.network(cache.weights, self.unit(tokens.queries_BTHK))
        memory_BTHK = rms_normed(y_BTHK, self.norm_K[...])
        return mix_with_attention(self.mix_H[...], attended_BTHK, memory_BTHK)

    def network(self, weights: Any, x_BTHK: jax.Array) -> jax.Array:
        return swiglu(weights, x_BTHK)

    def unit(self, x_BTHK: jax.Array) -> jax.Array:
        x_BTHK = at_least_float32(x_BTHK)
        return x_BTHK if self.sizes.qk_norm else unit_heads(x_BTHK)

    def take(self, tokens: LayerTokens) -> Any:
        x_BTD = tokens.inputs_BTD
        rate_BTZ = jax.nn.softplus(projected(x_BTD, self.rate_DZ[...]) + self.rate_bias_Z[...])
        momentum_BTH = None
        if self.momentum:
            momentum_BTH = projected(x_BTD, self.momentum_DH[...]) + self.momentum_bias_H[...]
            momentum_BTH = jax.nn.sigmoid(momentum_BTH)
        rates_BTHZ = rate_BTZ.reshape(*x_BTD.shape[:2], self.sizes.num_heads, 3)
        return Pairs(tokens.keys_BTHK, tokens.values_BTHK, rates_BTHZ, momentum_BTH)

    def update(self, cache: Any, taken: Any, weights: Any) -> tuple[Any, Metrics]:
        k_BTHK, v_BTHK = self.unit(taken.keys_BTHK), at_least_float32(taken.values_BTHK)
        rates = jnp.split(taken.rates_BTHZ, 3, axis=-1)
        sums = weighted_sums(swiglu_factors(cache.weights, k_BTHK, v_BTHK), rates)
        return after_step(cache, FastWeights(*sums), taken.momentum_BTH, weights, self.muon), {}

    def flops_per_token(self, window: int) -> float:
        D, H, A = self.sizes.width, self.sizes.num_heads, self.sizes.attention_size
        gates = 2 * D * H * (4 if self.momentum else 3)
        low, high = sorted((self.hidden_size, self.sizes.head_size))
        muon = 3 * H * len(NEWTON_SCHULZ) * (4 * low**2 * high + 2 * low**3)
        return gates + 18.0 * A * self.hidden_size + (muon / window if self.muon else 0)


def stacked_rows(x_HOI: jax.Array, rows: int, dtype: DTypeLike) -> jax.Array:
    """Copies a parameter for each batch element, (B, H, O, I), in `dtype` but at least float32."""
    return jnp.stack([x_HOI.astype(jnp.promote_types(dtype, jnp.float32))] * rows)


def product(matrix_BHOI: jax.Array, x_BTHI: jax.Array) -> jax.Array:
    return jnp.einsum("BHOI,BTHI->BTHO", matrix_BHOI, x_BTHI)


def swiglu(weights: FastWeights, x_BTHK: jax.Array) -> jax.Array:
    """Returns f(x), (B, T, H, K)."""
    gate_BTHN = jax.nn.silu(product(weights.gate_BHNK, x_BTHK))
    return product(weights.down_BHKN, gate_BTHN * product(weights.up_BHNK, x_BTHK))


Factors = tuple[tuple[jax.Array, jax.Array], ...]
"""For each matrix the descent direction of its output, (B, T, H, O), and its input (B, T, H, I)."""


def swiglu_factors(weights: FastWeights, k_BTHK: jax.Array, v_BTHK: jax.Array) -> Factors:
    """Returns the factors of the negative gradient of -v . f(k), for each token."""
    gate_BTHN, up_BTHN = product(weights.gate_BHNK, k_BTHK), product(weights.up_BHNK, k_BTHK)
    silu_BTHN, slope_BTHN = silu_and_slope(gate_BTHN)
    back_BTHN = product(weights.down_BHKN.mT, v_BTHK)
    return (
        (back_BTHN * up_BTHN * slope_BTHN, k_BTHK),
        (back_BTHN * silu_BTHN, k_BTHK),
        (v_BTHK, silu_BTHN * up_BTHN),
    )


def silu_and_slope(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    share = jax.nn.sigmoid(x)
    return x * share, share * (1 + x * (1 - share))


def weighted_sums(factors: Factors, rates: Sequence[jax.Array]) -> list[jax.Array]:
    """Returns each matrix's sum over tokens of rate * direction input^T; rates: (B, T, H, 1)."""
    return [
        jnp.einsum("BTHO,BTHI->BHOI", direction, rate * x)
        for (direction, x), rate in zip(factors, rates, strict=True)
    ]


def after_step(
    cache: LactCache,
    gradient: FastWeights,
    momentum_BTH: jax.Array | None,
    lengths: FastWeights,
    muon: bool,
) -> LactCache:
    """Returns the cache after a block.

    gradient: negative, times the rates. momentum_BTH, muon: as in `Pairs` and `LactMemory`.
    lengths: of the rows of the initial weights.
    """
    momentum = None
    if momentum_BTH is not None:
        kept_BH11 = jnp.mean(momentum_BTH, axis=1)[:, :, None, None]
        gradient = jax.tree.map(lambda g, old: g + kept_BH11 * old, gradient, cache.momentum)
        momentum = gradient
    step = FastWeights(*orthogonalised(gradient)) if muon else gradient
    weights = jax.tree.map(jnp.add, cache.weights, step)
    rows = row_lengths(weights)
    weights = jax.tree.map(lambda w, row, first: w / (row + 1e-5) * first, weights, rows, lengths)
    return LactCache(weights, momentum)


def row_lengths(weights: FastWeights) -> FastWeights:
    return jax.tree.map(lambda w: length(w, -1), weights)


def length(x: jax.Array, axes: int | tuple[int, ...]) -> jax.Array:
    """Returns Euclidean norms, whose gradient at zeros is 0."""
    return jnp.sqrt(jnp.sum(x * x, axes, keepdims=True) + 1e-30)


def orthogonalised(matrices: Sequence[jax.Array]) -> list[jax.Array]:
    """Returns the matrices with singular values near 1, by Newton-Schulz iterations (Muon).

    Matrices of one shape, up to transposition, are computed together.

    Source: section 3.2, and the coefficients of the released code.
    """
    tall = [x.shape[-2] > x.shape[-1] for x in matrices]
    wide = [x.mT if is_tall else x for x, is_tall in zip(matrices, tall, strict=True)]
    if len({x.shape for x in wide}) > 1:
        return [orthogonalised([x])[0] for x in matrices]
    x = jnp.stack(wide)
    x = x / (length(x, (-2, -1)) + 1e-7)
    for a, b, c in NEWTON_SCHULZ:
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return [y.mT if is_tall else y for y, is_tall in zip(x, tall, strict=True)]
