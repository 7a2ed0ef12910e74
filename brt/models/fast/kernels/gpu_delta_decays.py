"""Decays in the kernels of the delta rule for GPUs: of heads, and of their channels.

Plain counterparts: `products_by_head`, `products_by_channel` and `inverse_of_unit_lower` of
`brt.models.block_recurrent.gated_delta`. Axes as in `gpu_delta_tiles`, and C decays of a token: 1,
or K.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from brt.models.fast.kernels.parts import dot


class Exact(NamedTuple):
    """Products of float32 matrices.

    split: as sums of products of bfloat16 parts, with an error of 2^-16 instead of 2^-23: they run
    on tensor cores, and the results are rounded to bfloat16.
    """

    split: bool

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
        return sum(dot(of_mask, x, (contract, 0)) for x in split(x_WK))


def split(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns two bfloat16 matrices, whose sum is x but for 2^-17 of it."""
    first = x.astype(jnp.bfloat16)
    return first, (x - first.astype(x.dtype)).astype(jnp.bfloat16)


class Positions(NamedTuple):
    """Tokens of a block as rows, (W, 1), and as columns, (1, W)."""

    row: jax.Array
    column: jax.Array

    def across(self, half: int) -> jax.Array:
        """Returns for parts of two halves whether a row is in the second, its column in the first.

        half: tokens, a power of 2.
        """
        return self.second(half) & (self.row // half == self.column // half + 1)

    def second(self, half: int) -> jax.Array:
        return self.row // half % 2 == 1


def positions(tokens: int) -> Positions:
    def iota(*shape):
        return jax.lax.broadcasted_iota(jnp.int32, shape, shape[1] > 1)

    return Positions(iota(tokens, 1), iota(1, tokens))


def halves(tokens: int) -> list[int]:
    """Returns the tokens of the halves of parts of 2, 4, ..., W tokens."""
    return [1 << i for i in range(tokens.bit_length() - 1)]


def inverse_of_unit_lower(at: Positions, exact: Exact, x_WW: jax.Array) -> jax.Array:
    """Returns the inverse of I + L; L is the part of x below its diagonal; W is a power of 2.

    As `gated_delta.inverse_of_unit_lower`, for parts of 2, 4, ..., W tokens at once:

        [[A, 0], [C, D]]^-1 = [[A, 0], [0, D]]^-1 - [[A, 0], [0, D]]^-1 C [[A, 0], [0, D]]^-1
    """
    inverse_WW = jnp.where(at.row == at.column, jnp.ones_like(x_WW), 0.0)
    for half in halves(x_WW.shape[0]):
        below_WW = jnp.where(at.across(half), x_WW, 0.0)
        if half > 1:
            below_WW = exact.dot(exact.dot(inverse_WW, below_WW), inverse_WW)
        inverse_WW = inverse_WW - below_WW
    return inverse_WW


class Decayed(NamedTuple):
    """Products of keys, (W, W), and of queries, and decays of a block.

    C: 1, or K with decays of channels. since_WC, until_WC: decays since the start of the block, and
    until its end. kept_C: of the whole block. Of gradients, since and until are (W, K).
    """

    products_WW: jax.Array
    scores_WW: jax.Array
    since_WC: jax.Array
    until_WC: jax.Array
    kept_C: jax.Array


class ByHead(NamedTuple):
    """Products with one decay of each token."""

    exact: Exact

    def of_channels(self, x_K: jax.Array) -> jax.Array:
        """Returns (C,) of the sums over channels."""
        return jnp.sum(x_K, keepdims=True)

    def decay(self, at: Positions, log_W: jax.Array) -> tuple[jax.Array, ...]:
        """Returns logarithms of decays since the start, (W, 1), and decays in between, (W, W)."""
        before = at.column <= at.row
        log_W1 = jnp.sum(jnp.where(before, log_W[None, :], 0.0), axis=1, keepdims=True)
        # The same numbers as a row.
        log_1W = jnp.sum(jnp.where(at.row == at.column, log_W1, 0.0), axis=0, keepdims=True)
        decay_WW = jnp.exp(jnp.where(before, log_W1 - log_1W, -jnp.inf))
        return log_W1, decay_WW

    def forward(self, at: Positions, q_WK: jax.Array, k_WK: jax.Array, log_W: jax.Array) -> Decayed:
        log_W1, decay_WW = self.decay(at, log_W)
        last = jnp.sum(log_W, keepdims=True)
        scores_WW, products_WW = (decay_WW * dot(x, k_WK, (1, 1)) for x in (q_WK, k_WK))
        return Decayed(
            products_WW, scores_WW, jnp.exp(log_W1), jnp.exp(last - log_W1), jnp.exp(last)
        )

    def backward(
        self,
        at: Positions,
        q_WK: jax.Array,
        k_WK: jax.Array,
        log_W: jax.Array,
        found: Decayed,
        of: Decayed,
    ) -> tuple[jax.Array, ...]:
        """Returns the gradients of queries, keys and logarithms."""
        _, decay_WW = self.decay(at, log_W)
        dproducts_WW, dscores_WW = (
            (decay_WW * x).astype(k_WK.dtype) for x in (of.products_WW, of.scores_WW)
        )
        dq_WK = dot(dscores_WW, k_WK, (1, 0))
        dk_WK = dot(dscores_WW, q_WK, (0, 0)) + dot(dproducts_WW, k_WK, (0, 0))
        dk_WK = dk_WK + dot(dproducts_WW, k_WK, (1, 0))
        both_WW = of.products_WW * found.products_WW + of.scores_WW * found.scores_WW
        since_W1 = jnp.sum(of.since_WC * found.since_WC, axis=1, keepdims=True)
        until_W1 = jnp.sum(of.until_WC * found.until_WC, axis=1, keepdims=True)
        dlog_W1 = jnp.sum(both_WW, axis=1, keepdims=True) + since_W1 - until_W1
        dlog_W1 = dlog_W1 - jnp.sum(both_WW, axis=0)[:, None]
        last = jnp.sum(until_W1) + of.kept_C * found.kept_C
        # A logarithm is part of the sums of its token and of those after it.
        later_W = jnp.sum(jnp.where(at.column <= at.row, dlog_W1, 0.0), axis=0)
        return dq_WK, dk_WK, later_W + last


class ByChannel(NamedTuple):
    """Products with a decay of each channel, for halves of parts as in `products_by_channel`.

    Logarithms of decays are sums of those of tokens, products with matrices of zeros and ones.
    """

    exact: Exact

    def of_channels(self, x_K: jax.Array) -> jax.Array:
        return x_K

    def between(self, at: Positions, half: int) -> jax.Array:
        """Returns which tokens a key decays over until the middle of its part, or a query since."""
        later = jnp.where(at.second(half), at.column <= at.row, at.column > at.row)
        return (at.row // half == at.column // half) & later

    def halves(self, at, q_WK, k_WK, log_WK):
        """Yields for each size of halves which products they give, the tokens between, factors,
        and decayed queries and keys."""
        for half in halves(len(k_WK)):
            between_WW = self.between(at, half)
            factor_WK = jnp.exp(self.exact.sum(between_WW, log_WK))
            decayed = ((factor_WK * x).astype(k_WK.dtype) for x in (q_WK, k_WK))
            yield at.across(half), between_WW, factor_WK, *decayed

    def forward(
        self, at: Positions, q_WK: jax.Array, k_WK: jax.Array, log_WK: jax.Array
    ) -> Decayed:
        own_W1 = jnp.sum(q_WK.astype(log_WK.dtype) * k_WK, axis=1, keepdims=True)
        scores_WW = jnp.where(at.row == at.column, own_W1, 0.0)
        products_WW = jnp.zeros_like(scores_WW)
        for across, _, _, queries, keys in self.halves(at, q_WK, k_WK, log_WK):
            scores_WW = jnp.where(across, dot(queries, keys, (1, 1)), scores_WW)
            products_WW = jnp.where(across, dot(keys, keys, (1, 1)), products_WW)
        since_WK = jnp.exp(self.exact.sum(at.column <= at.row, log_WK))
        until_WK = jnp.exp(self.exact.sum(at.column > at.row, log_WK))
        kept_K = jnp.exp(jnp.sum(log_WK, axis=0))
        return Decayed(products_WW, scores_WW, since_WK, until_WK, kept_K)

    def backward(
        self,
        at: Positions,
        q_WK: jax.Array,
        k_WK: jax.Array,
        log_WK: jax.Array,
        found: Decayed,
        of: Decayed,
    ) -> tuple[jax.Array, ...]:
        own_W1 = jnp.sum(jnp.where(at.row == at.column, of.scores_WW, 0.0), axis=1, keepdims=True)
        dq_WK, dk_WK = own_W1 * k_WK, own_W1 * q_WK
        dlog_WK = self.exact.sum(at.column <= at.row, of.since_WC * found.since_WC, 0)
        dlog_WK = dlog_WK + self.exact.sum(at.column > at.row, of.until_WC * found.until_WC, 0)
        dlog_WK = dlog_WK + (of.kept_C * found.kept_C)[None, :]
        for across, between_WW, factor, queries, keys in self.halves(at, q_WK, k_WK, log_WK):
            dproducts, dscores = (
                jnp.where(across, x, 0.0).astype(k_WK.dtype) for x in (of.products_WW, of.scores_WW)
            )
            dqueries = dot(dscores, keys, (1, 0))
            dkeys = dot(dscores, queries, (0, 0)) + dot(dproducts, keys, (0, 0))
            dkeys = dkeys + dot(dproducts, keys, (1, 0))
            dq_WK, dk_WK = dq_WK + factor * dqueries, dk_WK + factor * dkeys
            of_log_WK = factor * (dqueries * q_WK + dkeys * k_WK)
            dlog_WK = dlog_WK + self.exact.sum(between_WW, of_log_WK, 0)
        return dq_WK, dk_WK, dlog_WK
