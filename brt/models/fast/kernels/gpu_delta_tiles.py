"""The computation of a grid step of the delta rule on a GPU: the mathematics of a block of tokens.

`gpu_delta` makes kernels of these functions. With S the matrix of a head before a block, e and f
the decays since the start of the block and until its end, b the steps, and D those between tokens:

    L = b (D * k k^T) below the diagonal      A = (I + L)^-1          scores = D * q k^T
    w = A b e k        u = A b v              stored = u - w S
    read = e q S + scores stored              S' = kept S + (f k)^T stored

Products have operands of the activations' type and sums in float32; logarithms, L and its inverse
are float32. Axes as in `brt.models`, and W tokens of a block    V channels of a part of the values
"""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from brt.models.fast.kernels.gpu_delta_decays import (
    Decayed,
    inverse_of_unit_lower,
    positions,
)
from brt.models.fast.kernels.parts import dot, upcast


def prepare(decays, q, k, v, log, step, w, u, decayed_q, decayed_k, scores, inverse, kept):
    """Computes the part of a block that does not depend on S.

    Inputs: q, k (W, K); v (W, V); log, logarithms of decays, and step, (W,).
    Outputs: w, decayed_q = e q, decayed_k = f k (W, K); u (W, V); scores, inverse = A (W, W);
    kept (C,).
    """
    queries, keys, step_W1 = q[...], k[...], step[...][:, None]
    at, kind = positions(queries.shape[0]), queries.dtype
    found = decays.forward(at, queries, keys, log[...])
    solved = inverse_of_unit_lower(at, decays.exact, step_W1 * found.products_WW).astype(kind)
    inverse[...], scores[...] = solved, found.scores_WW.astype(kind)
    w[...] = dot(solved, (step_W1 * found.since_WC * keys).astype(kind), (1, 0)).astype(kind)
    u[...] = dot(solved, (step_W1 * v[...]).astype(kind), (1, 0)).astype(kind)
    decayed_q[...] = (found.since_WC * queries).astype(kind)
    decayed_k[...] = (found.until_WC * keys).astype(kind)
    kept[...] = found.kept_C


def forward(tokens, matrix, w, u, decayed_q, decayed_k, scores, kept, after, read, stored, before):
    """Computes what a part of the values stores, reads and leaves, block after block.

    Inputs: matrix (K, V); w, decayed_q, decayed_k (T, K); u (T, V); scores (G, W, W); kept (G, C).
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
        return kept[g][:, None] * S + dot(decayed_k[rows, :], values, (0, 0))

    after[...] = jax.lax.fori_loop(0, scores.shape[0], block, matrix[...])


def backward(
    tokens, dafter, w, decayed_q, decayed_k, scores, kept, dread, dmatrix, dstored, dmatrices
):
    """Computes gradients of what is stored and of the matrices, from the last block on.

    Inputs: dafter (K, V), of the last matrix; w, decayed_q, decayed_k (T, K); scores (G, W, W);
    kept (G, C); dread (T, V).
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
        dS = kept[g][:, None] * dS + dot(decayed_q[rows, :], of_read, (0, 0))
        return dS - dot(w[rows, :], values, (0, 0))

    dmatrix[...] = jax.lax.fori_loop(0, last + 1, block, dafter[...])


def gradients(
    decays, part, q, k, v, log, step, inverse, w, u, stored, dstored, dread, before, dafter, *of
):
    """Computes the gradients of a block, from those of what is stored and of S after the block.

    Inputs: q, k, v, log, step, inverse, w, u and stored as of `prepare` and `forward`, of a block;
    dread, dstored (W, V); before, dafter (K, V). part: values of an iteration.
    Outputs: dq, dk (W, K); dv (W, V); dlog, dstep (W,).
    """
    dq, dk, dv, dlog, dstep = of
    (W, K), kind, sums = q.shape, q.dtype, upcast(q.dtype)
    at, step_W1, solved = positions(W), step[...][:, None], inverse[...]

    def add(i, carry):
        dw, du_u, of_q, of_k, dscores, dkept, of_step = carry
        columns = pl.ds(i * part, part)
        S, dS, of_read = before[:, columns], dafter[:, columns], dread[:, columns]
        values, dvalues = stored[:, columns], dstored[:, columns]
        of_q = of_q + dot(of_read, S, (1, 1))
        of_k = of_k + dot(values, dS, (1, 1))
        dw = dw - dot(dvalues, S, (1, 1))
        dscores = dscores + dot(of_read, values, (1, 1))
        dkept = dkept + jnp.sum(S.astype(sums) * dS, axis=1)
        given = dot(solved, dvalues, (0, 0))  # of b v
        dv[:, columns] = (step_W1 * given).astype(kind)
        of_step = of_step + jnp.sum(given * v[:, columns], axis=1, keepdims=True)
        du_u = du_u + dot(given.astype(kind), u[:, columns], (1, 1))
        return dw, du_u, of_q, of_k, dscores, dkept, of_step

    def zeros(*shape):
        return jnp.zeros(shape, sums)

    carry = zeros(W, K), zeros(W, W), zeros(W, K), zeros(W, K), zeros(W, W), zeros(K), zeros(W, 1)
    carry = jax.lax.fori_loop(0, v.shape[1] // part, add, carry)
    dw, dsystem, of_q, of_k, dscores, dkept, of_step = carry
    given = dot(solved, dw.astype(kind), (0, 0))  # of b e k
    dsystem = dsystem + dot(given.astype(kind), w[...], (1, 1))
    dsystem = jnp.where(at.column < at.row, -dsystem, 0.0)
    dscores = jnp.where(at.column <= at.row, dscores, 0.0)
    queries, keys, logs = q[...], k[...], log[...]
    found = decays.forward(at, queries, keys, logs)
    of_step = of_step + jnp.sum(dsystem * found.products_WW, axis=1, keepdims=True)
    of_step = of_step + jnp.sum(given * found.since_WC * keys, axis=1, keepdims=True)
    dstep[...] = of_step[:, 0]
    given = step_W1 * given
    since, kept = of_q * queries + given * keys, decays.of_channels(dkept)
    of_found = Decayed(step_W1 * dsystem, dscores, since, of_k * keys, kept)
    dqueries, dkeys, dlogs = decays.backward(at, queries, keys, logs, found, of_found)
    dq[...] = (dqueries + found.since_WC * of_q).astype(kind)
    dk[...] = (dkeys + found.until_WC * of_k + found.since_WC * given).astype(kind)
    dlog[...] = dlogs
