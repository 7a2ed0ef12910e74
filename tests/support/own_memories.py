"""Two memories that brt does not have, written as users write them: on `brt.memory` alone."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from brt.memory import (
    DENSE,
    LayerMemory,
    TokenMemory,
    at_least_float32,
    configurable,
    mix_with_attention,
    parameter,
    share_of_norm,
)


class GradientCache(NamedTuple):
    """The linear map of each head from keys to values, (B, H, K, K), float32. Empty: zeros."""

    matrix_BHKK: jax.Array


class Pairs(NamedTuple):
    keys_BTHK: jax.Array
    values_BTHK: jax.Array
    rates_BTH: jax.Array


@configurable(denylist=["rngs", "sizes", "window"])
class GradientMemory(LayerMemory):
    """A linear map that each block trains by one step of gradient descent, its rate from inputs."""

    name = "gradient"

    def __init__(self, rngs, sizes, window):
        self.sizes = sizes
        self.rate_DH = parameter(rngs, DENSE, sizes.width, sizes.num_heads)
        self.mix_H = parameter(rngs, jax.nn.initializers.zeros, sizes.num_heads)

    def init_cache(self, rows, dtype):
        H, K = self.sizes.num_heads, self.sizes.head_size
        return GradientCache(jnp.zeros((rows, H, K, K), jnp.promote_types(dtype, "float32")))

    def read(self, cache, tokens, attended_BTHK, weights):
        memory_BTHK = jnp.einsum("BTHK,BHKV->BTHV", tokens.queries_BTHK, cache.matrix_BHKK)
        return mix_with_attention(self.mix_H[...], attended_BTHK, memory_BTHK)

    def take(self, tokens):
        rates_BTH = jax.nn.sigmoid(tokens.inputs_BTD @ self.rate_DH[...])
        return Pairs(tokens.keys_BTHK, tokens.values_BTHK, rates_BTH)

    def update(self, cache, taken, weights):
        k_BTHK, v_BTHK, rates_BTH = map(at_least_float32, taken)

        def loss(matrix_BHKK):
            errors_BTHK = jnp.einsum("BTHK,BHKV->BTHV", k_BTHK, matrix_BHKK) - v_BTHK
            return jnp.sum(rates_BTH[..., None] * errors_BTHK**2) / (2 * k_BTHK.shape[1])

        return GradientCache(cache.matrix_BHKK - jax.grad(loss)(cache.matrix_BHKK)), {}


class RecurrenceCache(NamedTuple):
    """The units, (B, U), float32. Empty: zeros."""

    units_BU: jax.Array


@configurable(denylist=["rngs", "sizes", "window"])
class LinearRecurrence(TokenMemory):
    """h_t = a_t h_{t-1} + (1 - a_t) W x_t, with a width and an output matrix of its own."""

    name = "recurrence"
    in_residual = True

    def __init__(self, rngs, sizes, window, units: int = 8):
        self.units = units
        self.input_DU = parameter(rngs, DENSE, sizes.width, units)
        self.decay_DU = parameter(rngs, DENSE, sizes.width, units)
        self.output_UD = parameter(rngs, DENSE, units, sizes.width)

    def init_cache(self, rows, dtype):
        return RecurrenceCache(jnp.zeros((rows, self.units), jnp.promote_types(dtype, "float32")))

    def run(self, cache, tokens, attended_BTHK, real_BT):
        x_BTD = at_least_float32(tokens.inputs_BTD)
        keep_BTU = jnp.exp(-0.1 * jax.nn.sigmoid(x_BTD @ self.decay_DU[...]))
        keep_BTU = jnp.where(real_BT[..., None], keep_BTU, 1)
        new_BTU = (1 - keep_BTU) * (x_BTD @ self.input_DU[...])

        def after(first, second):
            return first[0] * second[0], first[1] * second[0] + second[1]

        kept_BTU, h_BTU = jax.lax.associative_scan(after, (keep_BTU, new_BTU), axis=1)
        h_BTU = h_BTU + kept_BTU * cache.units_BU[:, None]
        y_BTD = (h_BTU @ self.output_UD[...]).astype(tokens.inputs_BTD.dtype)
        share = share_of_norm(y_BTD, tokens.inputs_BTD)
        return y_BTD, RecurrenceCache(h_BTU[:, -1]), {"memory_share": share}
