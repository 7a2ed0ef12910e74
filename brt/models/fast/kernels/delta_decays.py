"""Decays in the kernels of the delta rule, one of each channel.

Plain counterparts: `products_by_channel` and `inverse_of_unit_lower` of
`brt.models.block_recurrent.gated_delta`. Axes as in `delta_tiles`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from brt.models.fast.kernels.parts import dot


class Exact(NamedTuple):
    """Products of float32 matrices.

    split: as sums of products of bfloat16 parts, with an error of 2^-16 instead of 2^-23: they run
    on matrix units, and the results are rounded to bfloat16.
    on_tpu: loops are unrolled, which on GPUs exceeds the registers, and vectors of W numbers are
    rows, (1, W).
    """

    split: bool
    on_tpu: bool = False

    def total(self, x_WK: jax.Array) -> jax.Array:
        """Returns the vector of the sums of columns."""
        return jnp.sum(x_WK, axis=0, keepdims=self.on_tpu)

    def vector(self, x_W1: jax.Array) -> jax.Array:
        if not self.on_tpu:
            return x_W1[:, 0]
        at = positions(len(x_W1))
        return self.total(jnp.where(at.row == at.column, x_W1, 0.0))

    def dot(self, a: jax.Array, b: jax.Array) -> jax.Array:
        if not self.split:
            return dot(a, b, (1, 0))
        (a, a_rest), (b, b_rest) = map(split, (a, b))
        return dot(a, b, (1, 0)) + (dot(a, b_rest, (1, 0)) + dot(a_rest, b, (1, 0)))

    def sum(self, mask_WW: jax.Array, x_WK: jax.Array, contract: int = 1) -> jax.Array:
        """Returns the sums of x over the tokens of each row of a mask, or each column (0)."""
        if not self.split:
            return dot(mask_WW.astype(x_WK.dtype), x_WK, (contract, 0))
        of_mask = mask_WW.astype(jnp.bfloat16)
        first, rest = (dot(of_mask, x, (contract, 0)) for x in split(x_WK))
        return first + rest


def split(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns two bfloat16 matrices, whose sum is x with an error of 2^-17."""
    first = x.astype(jnp.bfloat16)
    return first, (x - first.astype(x.dtype)).astype(jnp.bfloat16)


class Positions(NamedTuple):
    """Tokens of a block as rows, (W, 1), and as columns, (1, W)."""

    row: jax.Array
    column: jax.Array

    def across(self, half: Any) -> jax.Array:
        """Returns for parts of two halves whether a row is in the second, its column in the first.

        half: tokens, a power of 2.
        """
        return self.second(half) & (self.distance(half) == half)

    def second(self, half: Any) -> jax.Array:
        return (self.row & half) != 0

    def distance(self, half: Any) -> jax.Array:
        """Returns the distance from the half of the column to that of the row, in tokens."""
        return (self.row & -half) - (self.column & -half)


def positions(tokens: int) -> Positions:
    def iota(*shape):
        return jax.lax.broadcasted_iota(jnp.int32, shape, shape[1] > 1)

    return Positions(iota(tokens, 1), iota(1, tokens))


def column(x_W: jax.Array) -> jax.Array:
    """Returns the column (W, 1) of a vector."""
    if x_W.ndim == 1:
        return x_W[:, None]
    at = positions(x_W.shape[1])
    return jnp.sum(jnp.where(at.row == at.column, x_W, 0.0), axis=1, keepdims=True)


def for_halves(
    exact: Exact, tokens: int, body: Callable[[Any, Any], Any], carry: Any, first: int = 0
) -> Any:
    """Folds `body(half, carry)` over the tokens 1, 2, 4, ..., W / 2 of a half, from 2^first."""
    levels, one = tokens.bit_length() - 1, jnp.int32(1)

    def step(i, carry):
        return body(one << i, carry)

    return jax.lax.fori_loop(first, levels, step, carry, unroll=exact.on_tpu)


def inverse_of_unit_lower(at: Positions, exact: Exact, x_WW: jax.Array) -> jax.Array:
    """Returns the inverse of I + L; L is the part of x below its diagonal; W is a power of 2.

    As `gated_delta.inverse_of_unit_lower`, for parts of 2, 4, ..., W tokens at once:

        [[A, 0], [C, D]]^-1 = [[A, 0], [0, D]]^-1 - [[A, 0], [0, D]]^-1 C [[A, 0], [0, D]]^-1
    """

    def join(half, inverse_WW):
        below_WW = jnp.where(at.across(half), x_WW, 0.0)
        return inverse_WW - exact.dot(exact.dot(inverse_WW, below_WW), inverse_WW)

    of_pairs_WW = jnp.where(at.across(1), -x_WW, 0.0)
    of_pairs_WW = of_pairs_WW + jnp.where(at.row == at.column, 1.0, 0.0)
    return for_halves(exact, x_WW.shape[0], join, of_pairs_WW, first=1)


class Factors(NamedTuple):
    """Decays of a block.

    since_WK, until_WK: since its start, and until its end. kept_K: of the whole block.
    """

    since_WK: jax.Array
    until_WK: jax.Array
    kept_K: jax.Array


def product_gradients(
    q_WK: jax.Array, k_WK: jax.Array, dscores_WW: jax.Array, dproducts_WW: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns the gradients of queries and keys from those of q k^T and k k^T."""
    both_WW = (dproducts_WW + dproducts_WW.T).astype(k_WK.dtype)
    dscores_WW = dscores_WW.astype(k_WK.dtype)
    dk_WK = dot(dscores_WW, q_WK, (0, 0)) + dot(both_WW, k_WK, (1, 0))
    return dot(dscores_WW, k_WK, (1, 0)), dk_WK


class Decays(NamedTuple):
    """Products with decays and their gradients; halves of parts as in `products_by_channel`.

    Logarithms of decays are sums over tokens, products with matrices of zeros and ones.
    """

    exact: Exact

    def factors(self, at: Positions, log_WK: jax.Array) -> Factors:
        since_WK = jnp.exp(self.exact.sum(at.column <= at.row, log_WK))
        until_WK = jnp.exp(self.exact.sum(at.column > at.row, log_WK))
        return Factors(since_WK, until_WK, jnp.exp(self.exact.total(log_WK)))

    def between(self, at: Positions, half: Any) -> jax.Array:
        """Returns which tokens a key decays over until the middle of its part, or a query since."""
        later = at.second(half) ^ (at.column > at.row)
        return (at.distance(half) == 0) & later

    def products(
        self, at: Positions, k_WK: jax.Array, log_WK: jax.Array, *x_WK: jax.Array
    ) -> list[jax.Array]:
        own = at.row == at.column
        kind = log_WK.dtype
        found = [
            jnp.where(own, jnp.sum(x.astype(kind) * k_WK, axis=1, keepdims=True), 0.0) for x in x_WK
        ]

        def add(half, found):
            factor_WK = jnp.exp(self.exact.sum(self.between(at, half), log_WK))
            k, *xs = ((factor_WK * x).astype(k_WK.dtype) for x in (k_WK, *x_WK))
            across = at.across(half)
            pairs = zip(xs, found, strict=True)
            return [jnp.where(across, dot(x, k, (1, 1)), y) for x, y in pairs]

        return for_halves(self.exact, len(k_WK), add, found)

    def backward(
        self,
        at: Positions,
        q_WK: jax.Array,
        k_WK: jax.Array,
        log_WK: jax.Array,
        dscores_WW: jax.Array,
        dproducts_WW: jax.Array,
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Returns the gradients of queries, keys and logarithms."""
        own = at.row == at.column
        own_W1 = jnp.sum(jnp.where(own, dscores_WW, 0.0), axis=1, keepdims=True)
        dq_WK, dk_WK, dlog_WK = own_W1 * k_WK, own_W1 * q_WK, jnp.zeros_like(log_WK)

        def add(half, carry):
            dq_WK, dk_WK, dlog_WK = carry
            between, across = self.between(at, half), at.across(half)
            factor = jnp.exp(self.exact.sum(between, log_WK))
            q, k = ((factor * x).astype(k_WK.dtype) for x in (q_WK, k_WK))
            of = (jnp.where(across, x, 0.0) for x in (dscores_WW, dproducts_WW))
            dq, dk = (factor * x for x in product_gradients(q, k, *of))
            dlog_WK = dlog_WK + self.exact.sum(between, dq * q_WK + dk * k_WK, 0)
            return dq_WK + dq, dk_WK + dk, dlog_WK

        return for_halves(self.exact, len(k_WK), add, (dq_WK, dk_WK, dlog_WK))

    def of_factors(
        self, at: Positions, dsince_WK: jax.Array, duntil_WK: jax.Array, dkept_K: jax.Array
    ) -> jax.Array:
        """Returns gradients of logarithms, from those of logarithms of factors."""
        dlog_WK = self.exact.sum(at.column <= at.row, dsince_WK, 0)
        return dlog_WK + self.exact.sum(at.column > at.row, duntil_WK, 0) + dkept_K
