"""Titans: an MLP of each head that blocks train with momentum and weight decay."""

from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.nn.initializers import constant, ones, zeros
from jax.typing import DTypeLike

from brt.checks import Count, OneOf, configurable
from brt.models.block_recurrent.lact import (
    Factors,
    LactCache,
    LactMemory,
    product,
    silu_and_slope,
    stacked_rows,
    weighted_sums,
)
from brt.models.block_recurrent.memory import LayerTokens, Metrics
from brt.models.layers.initializers import DENSE, normal, parameter
from brt.models.ops import at_least_float32, projected
from brt.models.sizes import Sizes

ENDS = ("initial", "zero")


class MLPWeights(NamedTuple):
    """Matrices of f(x) = output silu(hidden x), with N hidden units, for each head."""

    hidden_BHNK: jax.Array
    output_BHKN: jax.Array


class TitansPairs(NamedTuple):
    """The training data of a block; momentum_BTH, keep_BTH: shares of momentum and weights kept."""

    keys_BTHK: jax.Array
    values_BTHK: jax.Array
    rate_BTH: jax.Array
    momentum_BTH: jax.Array
    keep_BTH: jax.Array


@configurable(denylist=["rngs", "sizes", "window"])
class TitansMemory(LactMemory):
    """An MLP f whose weights M every token t changes, by its error |f(k_t) - v_t|^2.

        S_t = n_t S_{t-1} - r_t (gradient of the error),   M_t = (1 - a_t) M_{t-1} + a_t M_0 + S_t

    The gradient is that of the weights before the block, which its tokens also read: norm(f(q_t)),
    mixed with attention. n, r < 1 / W and a depend on the layer's inputs.

    Args:
        hidden_size: N, hidden units of a head's MLP; None: K.
        decay_to: "initial": M_0 are the learned weights of new documents; "zero", as published.
            Once both matrices are near zero, so are their gradients.

    Source: Titans, memory as a gate, Behrouz et al. 2025, arXiv:2501.00663, sections 3.1 and 3.2.
    """

    name = "titans"

    def __init__(
        self,
        rngs: nnx.Rngs,
        sizes: Sizes,
        window: int,
        hidden_size: Count | None = None,
        decay_to: Annotated[str, OneOf(ENDS)] = "initial",
    ):
        D, H, K = sizes.width, sizes.num_heads, sizes.head_size
        N = hidden_size or K
        self.sizes, self.window = sizes, window
        self.hidden_size, self.decay_to, self.momentum = N, decay_to, True
        self.hidden_HNK = parameter(rngs, normal(K**-0.5), H, N, K)
        self.output_HKN = parameter(rngs, normal(N**-0.5), H, K, N)
        self.rate_DH, self.momentum_DH, self.decay_DH = (
            parameter(rngs, DENSE, D, H) for _ in range(3)
        )
        self.rate_bias_H = parameter(rngs, constant(-1.0), H)
        self.momentum_bias_H = parameter(rngs, zeros, H)
        self.decay_bias_H = parameter(rngs, constant(-4.0), H)
        self.norm_K = parameter(rngs, ones, K)
        self.mix_H = parameter(rngs, zeros, H)

    def initial(self, rows: int, dtype: DTypeLike) -> Any:
        learned = self.hidden_HNK[...], self.output_HKN[...]
        return MLPWeights(*(stacked_rows(x, rows, dtype) for x in learned))

    def prepare(self, dtype: DTypeLike, key: jax.Array | None = None) -> Any:
        """Returns the weights M_0 that the memory decays to."""
        initial = self.initial(1, dtype)
        return initial if self.decay_to == "initial" else jax.tree.map(jnp.zeros_like, initial)

    def network(self, weights: Any, x_BTHK: jax.Array) -> jax.Array:
        return product(weights.output_BHKN, jax.nn.silu(product(weights.hidden_BHNK, x_BTHK)))

    def take(self, tokens: LayerTokens) -> Any:
        x_BTD = tokens.inputs_BTD
        rate_BTH, momentum_BTH, decay_BTH = (
            projected(x_BTD, matrix_DH[...]) + bias_H[...]
            for matrix_DH, bias_H in (
                (self.rate_DH, self.rate_bias_H),
                (self.momentum_DH, self.momentum_bias_H),
                (self.decay_DH, self.decay_bias_H),
            )
        )
        return TitansPairs(
            tokens.keys_BTHK,
            tokens.values_BTHK,
            jax.nn.sigmoid(rate_BTH) / self.window,
            jax.nn.sigmoid(momentum_BTH),
            jax.nn.sigmoid(-decay_BTH),
        )

    def update(self, cache: Any, taken: Any, weights: Any) -> tuple[Any, Metrics]:
        k_BTHK, v_BTHK = self.unit(taken.keys_BTHK), at_least_float32(taken.values_BTHK)
        factors = mlp_factors(cache.weights, k_BTHK, v_BTHK)

        def steps(parts_BTH: jax.Array) -> list[jax.Array]:
            rate_BTH1 = (taken.rate_BTH * parts_BTH)[..., None]
            before_BH11 = (taken.momentum_BTH * parts_BTH)[:, 0, :, None, None]
            sums = weighted_sums(factors, [rate_BTH1] * len(factors))
            return [x + before_BH11 * y for x, y in zip(sums, cache.momentum, strict=True)]

        in_momentum_BTH, in_weights_BTH = parts_at_end(taken.momentum_BTH, taken.keep_BTH)
        kept_BH11 = jnp.prod(taken.keep_BTH, axis=1)[..., None, None]
        triples = zip(steps(in_weights_BTH), cache.weights, weights, strict=True)
        new = MLPWeights(*(s + kept_BH11 * old + (1 - kept_BH11) * end for s, old, end in triples))
        return LactCache(new, MLPWeights(*steps(in_momentum_BTH))), {}

    def flops_per_token(self, window: int) -> float:
        A = self.sizes.attention_size
        return 6.0 * self.sizes.width * self.sizes.num_heads + 18.0 * A * self.hidden_size


def mlp_factors(weights: MLPWeights, k_BTHK: jax.Array, v_BTHK: jax.Array) -> Factors:
    """Returns the factors of the negative gradient of |f(k) - v|^2, for each token."""
    silu_BTHN, slope_BTHN = silu_and_slope(product(weights.hidden_BHNK, k_BTHK))
    error_BTHK = 2 * (v_BTHK - product(weights.output_BHKN, silu_BTHN))
    back_BTHN = product(weights.output_BHKN.mT, error_BTHK)
    return (back_BTHN * slope_BTHN, k_BTHK), (error_BTHK, silu_BTHN)


def parts_at_end(momentum_BTH: jax.Array, keep_BTH: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the parts of each token's step in momentum and weights after the block, (B, T, H).

    A step adds to the weights at once, and through the momentum with every later token.
    """

    def later(x_BTH: jax.Array) -> jax.Array:
        return jnp.concatenate([x_BTH[:, 1:], jnp.ones_like(x_BTH[:, :1])], axis=1)

    def joined(after: Any, token: Any) -> Any:
        return token[0] * after[0], token[1] + token[0] * after[1]

    in_momentum_BTH, kept_BTH = (
        jax.lax.cumprod(later(x_BTH), axis=1, reverse=True) for x_BTH in (momentum_BTH, keep_BTH)
    )
    terms = later(momentum_BTH), kept_BTH
    _, in_weights_BTH = jax.lax.associative_scan(joined, terms, reverse=True, axis=1)
    return in_momentum_BTH, in_weights_BTH
