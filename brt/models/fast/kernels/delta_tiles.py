"""The computation of a grid step of the delta rule: the mathematics of a block of tokens.

`gpu_delta` and `delta` make kernels of these functions, for GPUs and TPUs. With S the matrix of a
head before a block, e and f the decays since the start of the block and until its end, b the steps,
and D the decays between tokens:

    L = b (D * k k^T) below the diagonal      A = (I + L)^-1          scores = D * q k^T
    w = A b e k        u = A b v              stored = u - w S
    read = e q S + scores stored              S' = kept S + (f k)^T stored

Products have operands of the activations' type and sums in float32; logarithms, L and its inverse
are float32. Axes as in `brt.models`, and W tokens of a block    V channels of a part of the values
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from brt.models.fast.kernels.delta_decays import (
    column,
    inverse_of_unit_lower,
    positions,
)
from brt.models.fast.kernels.parts import dot, upcast


def fold(count: int, body: Callable[[Any, Any], Any], carry: Any) -> Any:
    """Folds `body(i, carry)` over i < `count`, without a loop for one iteration."""
    return body(0, carry) if count == 1 else jax.lax.fori_loop(0, count, body, carry)


def prepare(decays, part, q, k, v, log, step, w, u, decayed_q, decayed_k, scores, inverse, kept):
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
        found = decays.products(at, keys, log[:, columns], keys, q[:, columns])
        return tuple(x + y for x, y in zip(sums, found, strict=True))

    zeros = jnp.zeros((W, W), upcast(kind))
    products, found = fold(K // part, multiply, (zeros, zeros))
    scores[...] = found.astype(kind)
    solved = inverse_of_unit_lower(at, decays.exact, step_W1 * products).astype(kind)
    inverse[...] = solved

    def solve(i, _):
        columns = pl.ds(i * part, part)
        keys = k[:, columns]
        since, until, kept[..., columns] = decays.factors(at, log[:, columns])
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


def gradients(decays, part, *arrays):
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
        return dsystem, products + decays.products(at, keys, log[:, columns], keys)[0]

    carry = dsystem, jnp.zeros((W, W), sums)
    dsystem, products = fold(K // part, add, carry)
    dsystem = jnp.where(at.column < at.row, -dsystem, 0.0)
    of_step = of_step + jnp.sum(dsystem * products, axis=1, keepdims=True)
    dproducts = step_W1 * dsystem
    dscores = jnp.where(at.column <= at.row, dot(dread[...], stored[...], (1, 1)), 0.0)

    def finish(i, of_step):
        columns = pl.ds(i * part, part)
        queries, keys = q[:, columns], k[:, columns]
        of_products = decays.backward(at, queries, keys, log[:, columns], dscores, dproducts)
        dqueries, dkeys, of_logs = of_products

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
        since, until, kept = decays.factors(at, log[:, columns])
        of_q, of_k, of_keys = since * of_q, until * of_k, since * keys_gradient(dw)
        of_step = of_step + jnp.sum(of_keys * keys, axis=1, keepdims=True)
        of_keys = step_W1 * of_keys
        dsince = of_keys * keys + of_q * queries
        of_factors = decays.of_factors(
            at, dsince, of_k * keys, kept * decays.exact.vector(dkept_K1)
        )
        dq[:, columns] = (dqueries + of_q).astype(kind)
        dk[:, columns] = (dkeys + of_k + of_keys).astype(kind)
        dlog[:, columns] = of_logs + of_factors
        return of_step

    dstep[...] = decays.exact.vector(fold(K // part, finish, of_step))
