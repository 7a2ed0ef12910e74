"""The computation of a grid step of the delta rule: the mathematics of a block of tokens.

`gpu_delta` and `delta` make kernels of these functions, for GPUs and TPUs. With S the matrix of a
head before a block, e and f the decays since the start of the block and until its end, b the steps,
and D the decays between tokens:

    L = b (D * k k^T) below the diagonal      A = (I + L)^-1          scores = D * q k^T
    w = A b e k        u = A b v              stored = u - w S
    read = e q S + scores stored              S' = kept S + (f k)^T stored

Products have operands of the activations' type and sums in float32; logarithms, L and its inverse
are float32. Plain counterparts: functions of `brt.models.block_recurrent.gated_delta`.

Axes as in `brt.models`, and W tokens of a block    V channels of a part of the values
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from brt.models.fast.kernels.parts import dot, upcast


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


# Decays of channels, with halves of parts as in `gated_delta.products_by_channel`. Logarithms of
# decays are sums over tokens, products with matrices of zeros and ones.


def factors(
    exact: Exact, at: Positions, log_WK: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns decays since a block's start and until its end, (W, K), and of the whole, (K,)."""
    since_WK = jnp.exp(exact.sum(at.column <= at.row, log_WK))
    until_WK = jnp.exp(exact.sum(at.column > at.row, log_WK))
    return since_WK, until_WK, jnp.exp(exact.total(log_WK))


def between(at: Positions, half: Any) -> jax.Array:
    """Returns which tokens a key decays over until the middle of its part, or a query since."""
    later = at.second(half) ^ (at.column > at.row)
    return (at.distance(half) == 0) & later


def decayed_products(
    exact: Exact, at: Positions, k_WK: jax.Array, log_WK: jax.Array, *x_WK: jax.Array
) -> list[jax.Array]:
    """Returns products of each x with the keys up to its token, (W, W), decayed in between."""
    own = at.row == at.column
    kind = log_WK.dtype
    found = [
        jnp.where(own, jnp.sum(x.astype(kind) * k_WK, axis=1, keepdims=True), 0.0) for x in x_WK
    ]

    def add(half, found):
        factor_WK = jnp.exp(exact.sum(between(at, half), log_WK))
        k, *xs = ((factor_WK * x).astype(k_WK.dtype) for x in (k_WK, *x_WK))
        across = at.across(half)
        pairs = zip(xs, found, strict=True)
        return [jnp.where(across, dot(x, k, (1, 1)), y) for x, y in pairs]

    return for_halves(exact, len(k_WK), add, found)


def gradients_of_products(
    exact: Exact,
    at: Positions,
    q_WK: jax.Array,
    k_WK: jax.Array,
    log_WK: jax.Array,
    dscores_WW: jax.Array,
    dproducts_WW: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns the gradients of queries, keys and logarithms from those of q k^T and k k^T."""
    own = at.row == at.column
    own_W1 = jnp.sum(jnp.where(own, dscores_WW, 0.0), axis=1, keepdims=True)
    dq_WK, dk_WK, dlog_WK = own_W1 * k_WK, own_W1 * q_WK, jnp.zeros_like(log_WK)

    def add(half, carry):
        dq_WK, dk_WK, dlog_WK = carry
        seen, across = between(at, half), at.across(half)
        factor = jnp.exp(exact.sum(seen, log_WK))
        q, k = ((factor * x).astype(k_WK.dtype) for x in (q_WK, k_WK))
        dscores, dproducts = (jnp.where(across, x, 0.0) for x in (dscores_WW, dproducts_WW))
        both, dscores = (x.astype(k.dtype) for x in (dproducts + dproducts.T, dscores))
        dk = dot(dscores, q, (0, 0)) + dot(both, k, (1, 0))
        dq, dk = factor * dot(dscores, k, (1, 0)), factor * dk
        dlog_WK = dlog_WK + exact.sum(seen, dq * q_WK + dk * k_WK, 0)
        return dq_WK + dq, dk_WK + dk, dlog_WK

    return for_halves(exact, len(k_WK), add, (dq_WK, dk_WK, dlog_WK))


# A block of tokens.


def fold(count: int, body: Callable[[Any, Any], Any], carry: Any) -> Any:
    """Folds `body(i, carry)` over i < `count`, without a loop for one iteration."""
    return body(0, carry) if count == 1 else jax.lax.fori_loop(0, count, body, carry)


def prepare(exact, part, q, k, v, log, step, w, u, decayed_q, decayed_k, scores, inverse, kept):
    """Computes the part of a block that does not depend on S.

    Inputs: q, k (W, K); v (W, V); log, logarithms of decays, and step, (W,), on TPUs (1, W).
    Outputs: w, decayed_q = e q, decayed_k = f k (W, K); u (W, V); scores, inverse = A (W, W); kept
    (K,). part: channels of an iteration.
    """
    (W, K), kind, step_W1 = q.shape, q.dtype, column(step[...])
    at = positions(W)

    def multiply(i, sums):
        columns = pl.ds(i * part, part)
        keys = k[:, columns]
        found = decayed_products(exact, at, keys, log[:, columns], keys, q[:, columns])
        return tuple(x + y for x, y in zip(sums, found, strict=True))

    zeros = jnp.zeros((W, W), upcast(kind))
    products, found = fold(K // part, multiply, (zeros, zeros))
    scores[...] = found.astype(kind)
    solved = inverse_of_unit_lower(at, exact, step_W1 * products).astype(kind)
    inverse[...] = solved

    def solve(i, _):
        columns = pl.ds(i * part, part)
        keys = k[:, columns]
        since, until, kept[..., columns] = factors(exact, at, log[:, columns])
        w[:, columns] = dot(solved, (step_W1 * since * keys).astype(kind), (1, 0)).astype(kind)
        decayed_q[:, columns] = (since * q[:, columns]).astype(kind)
        decayed_k[:, columns] = (until * keys).astype(kind)

    def solve_values(i, _):
        columns = pl.ds(i * part, part)
        u[:, columns] = dot(solved, (step_W1 * v[:, columns]).astype(kind), (1, 0)).astype(kind)

    fold(K // part, solve, None)
    fold(v.shape[1] // part, solve_values, None)


def forward(tokens, matrix, w, u, decayed_q, decayed_k, scores, kept, after, read, stored, before):
    """Computes stored and read values, and S, for a part of the values, block after block.

    Inputs: matrix (K, V); w, decayed_q, decayed_k (T, K); u (T, V); scores (G, W, W); kept (G, K).
    Outputs: after (K, V); read, stored (T, V); before (G, K, V), S before each block.
    """

    def block(g, S):
        rows = pl.ds(g * tokens, tokens)
        rounded = S.astype(w.dtype)
        before[g] = rounded
        values = (u[rows, :] - dot(w[rows, :], rounded, (1, 0))).astype(w.dtype)
        stored[rows, :] = values
        found = dot(decayed_q[rows, :], rounded, (1, 0)) + dot(scores[g], values, (1, 0))
        read[rows, :] = found.astype(read.dtype)
        return column(kept[g]) * S + dot(decayed_k[rows, :], values, (0, 0))

    after[...] = fold(scores.shape[0], block, matrix[...])


def backward(
    tokens, dafter, w, decayed_q, decayed_k, scores, kept, dread, dmatrix, dstored, dmatrices
):
    """Computes gradients of stored values and of the matrices, from the last block to the first.

    Inputs: dafter (K, V), of the last matrix; w, decayed_q, decayed_k (T, K); scores (G, W, W);
    kept (G, K); dread (T, V).
    Outputs: dmatrix (K, V), of the first matrix; dstored (T, V); dmatrices (G, K, V), of the matrix
    after each block.
    """
    last = scores.shape[0] - 1

    def block(i, dS):
        g = last - i
        rows = pl.ds(g * tokens, tokens)
        rounded, of_read = dS.astype(w.dtype), dread[rows, :]
        dmatrices[g] = rounded
        values = dot(scores[g], of_read, (0, 0)) + dot(decayed_k[rows, :], rounded, (1, 0))
        values = values.astype(w.dtype)
        dstored[rows, :] = values
        dS = column(kept[g]) * dS + dot(decayed_q[rows, :], of_read, (0, 0))
        return dS - dot(w[rows, :], values, (0, 0))

    dmatrix[...] = fold(last + 1, block, dafter[...])


def gradients(exact, part, *arrays):
    """Computes the gradients of a block from those of stored values and of S after the block.

    Arrays: the inputs q, k, v, log, step, inverse, w, u and stored of a block, as in `prepare`
    and `forward`; dstored, dread (W, V); before, dafter (K, V); and the outputs dq, dk
    (W, K); dv (W, V); dlog, dstep (W,). part: channels of keys of an iteration: all at once would
    exceed the registers.
    """
    q, k, v, log, step, inverse, w, u, stored, *others = arrays
    dstored, dread, before, dafter, dq, dk, dv, dlog, dstep = others
    (W, K), V, kind, sums = q.shape, v.shape[1], q.dtype, upcast(q.dtype)
    at, step_W1, solved = positions(W), column(step[...]), inverse[...]

    def of_values(i, carry):
        of_step, dsystem = carry
        columns = pl.ds(i * part, part)
        of_values = dot(solved, dstored[:, columns], (0, 0))  # of b v
        dv[:, columns] = (step_W1 * of_values).astype(kind)
        of_step = of_step + jnp.sum(of_values * v[:, columns], axis=1, keepdims=True)
        return of_step, dsystem + dot(of_values.astype(kind), u[:, columns], (1, 1))

    carry = jnp.zeros((W, 1), sums), jnp.zeros((W, W), sums)
    of_step, dsystem = fold(V // part, of_values, carry)

    def keys_gradient(dw):  # of b e k
        return dot(solved, dw.astype(kind), (0, 0))

    def add(i, carry):
        dsystem, products = carry
        columns = pl.ds(i * part, part)

        def of_w(j, dw):
            values = pl.ds(j * part, part)
            return dw - dot(dstored[:, values], before[columns, values], (1, 1))

        dw = fold(V // part, of_w, jnp.zeros((W, part), sums))
        of_keys, keys = keys_gradient(dw).astype(kind), k[:, columns]
        dsystem = dsystem + dot(of_keys, w[:, columns], (1, 1))
        return dsystem, products + decayed_products(exact, at, keys, log[:, columns], keys)[0]

    carry = dsystem, jnp.zeros((W, W), sums)
    dsystem, products = fold(K // part, add, carry)
    dsystem = jnp.where(at.column < at.row, -dsystem, 0.0)
    of_step = of_step + jnp.sum(dsystem * products, axis=1, keepdims=True)
    dproducts = step_W1 * dsystem
    dscores = jnp.where(at.column <= at.row, dot(dread[...], stored[...], (1, 1)), 0.0)

    def finish(i, of_step):
        columns = pl.ds(i * part, part)
        queries, keys = q[:, columns], k[:, columns]
        of_products = at, queries, keys, log[:, columns], dscores, dproducts
        dqueries, dkeys, of_logs = gradients_of_products(exact, *of_products)

        def of_values(j, carry):
            dw, of_q, of_k, dkept = carry
            values = pl.ds(j * part, part)
            S, dS = before[columns, values], dafter[columns, values]
            dw = dw - dot(dstored[:, values], S, (1, 1))
            of_q = of_q + dot(dread[:, values], S, (1, 1))
            of_k = of_k + dot(stored[:, values], dS, (1, 1))
            return dw, of_q, of_k, dkept + jnp.sum(S.astype(sums) * dS, axis=1, keepdims=True)

        zeros = jnp.zeros((W, part), sums)
        carry = zeros, zeros, zeros, jnp.zeros((part, 1), sums)
        dw, of_q, of_k, dkept_K1 = fold(V // part, of_values, carry)
        since, until, kept = factors(exact, at, log[:, columns])
        of_q, of_k, of_keys = since * of_q, until * of_k, since * keys_gradient(dw)
        of_step = of_step + jnp.sum(of_keys * keys, axis=1, keepdims=True)
        of_keys = step_W1 * of_keys
        dsince = of_keys * keys + of_q * queries
        of_factors = exact.sum(at.column <= at.row, dsince, 0)
        of_factors = of_factors + exact.sum(at.column > at.row, of_k * keys, 0)
        of_factors = of_factors + kept * exact.vector(dkept_K1)
        dq[:, columns] = (dqueries + of_q).astype(kind)
        dk[:, columns] = (dkeys + of_k + of_keys).astype(kind)
        dlog[:, columns] = of_logs + of_factors
        return of_step

    dstep[...] = exact.vector(fold(K // part, finish, of_step))
