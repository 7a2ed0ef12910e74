"""The delta rule as Pallas TPU kernels, one of each pass; the mathematics are in `delta_tiles`.

Plain counterpart: `brt.models.block_recurrent.gated_delta.delta_rule` (tests/models/test_delta.py
compares results and all gradients). A grid step is a block of tokens of one head. The matrix of the
head stays in VMEM from block to block, backwards its gradient.

Axes as in `delta_tiles`, and G blocks, T = G W    A = H K
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike

from brt.models.fast.kernels import delta_tiles
from brt.models.fast.kernels.delta_decays import ByChannel, ByHead, Exact
from brt.models.fast.kernels.parts import COMPILER, Heads, interpreted, on_each_device, upcast

BLOCK = 128


def rule(heads: Heads, tokens, matrix, q, k, v, log, step):
    return _rule(heads, tokens, matrix, q, k, v, log, step)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _rule(heads, W, matrix, q, k, v, log, step):
    return _forward(heads, W, matrix, q, k, v, log, step)[0]


def _forward(heads, W, matrix, *inputs):
    after, read, stored, before = _forward_call(heads, W, matrix, *inputs)
    return (after, read), (*inputs, stored, before)


def _backward(heads, W, saved, gradients):
    return tuple(_backward_call(heads, W, *saved, *gradients))


_rule.defvjp(_forward, _backward)


def _specs(heads, W, order):
    K = heads.head_size

    def index(*last):
        return lambda h, b, g: (b, h, *last)

    return {
        "tokens": pl.BlockSpec((None, W, K), lambda h, b, g: (b, order(g), h)),
        "numbers": pl.BlockSpec((None, None, 1, W), lambda h, b, g: (b, h, 0, order(g))),
        "matrix": pl.BlockSpec((None, None, K, K), lambda h, b, g: (b, h, 0, 0)),
        "matrices": pl.BlockSpec((None, None, 1, K, K), lambda h, b, g: (b, h, order(g), 0, 0)),
    }


def _decays(q, log):
    exact = Exact(q.dtype == jnp.bfloat16, on_tpu=True)
    return ByHead(exact) if log.ndim == 4 else ByChannel(exact)


def _scratch(heads, W, q, log):
    """What `prepare` computes."""
    K, kind = heads.head_size, q.dtype
    C = 1 if log.ndim == 4 else K
    V = pltpu.VMEM
    return [
        *[V((W, K), kind)] * 4,
        V((1, W, W), kind),
        V((W, W), kind),
        V((1, 1, C), upcast(kind)),
    ]


def _forward_call(heads, W, matrix, q, k, v, log, step):
    B, T = q.shape[:2]
    H, K = heads.num_heads, heads.head_size
    specs = _specs(heads, W, lambda g: g)
    logs = "numbers" if log.ndim == 4 else "tokens"
    names = ["tokens"] * 3 + [logs, "numbers", "matrix"]
    outs = ["matrix", "tokens", "tokens", "matrices"]
    before = jax.ShapeDtypeStruct((B, H, T // W, K, K), q.dtype)
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (matrix, v, v)]
    return pl.pallas_call(
        functools.partial(_forward_kernel, _decays(q, log), W),
        grid=(H, B, T // W),
        in_specs=[specs[x] for x in names],
        out_specs=[specs[x] for x in outs],
        out_shape=[*shapes, before],
        scratch_shapes=_scratch(heads, W, q, log),
        compiler_params=COMPILER,
        interpret=interpreted(heads),
        name="delta_forward",
    )(q, k, v, log, step, matrix)


def _forward_kernel(decays, W, q, k, v, log, step, matrix, after, read, stored, before, *scratch):
    @pl.when(pl.program_id(2) == 0)
    def _():
        after[...] = matrix[...]

    w, u, decayed_q, decayed_k, scores, inverse, kept = scratch
    K = q.shape[1]
    delta_tiles.prepare(
        decays, K, q, k, v, log, step, w, u, decayed_q, decayed_k, scores.at[0], inverse, kept.at[0]
    )
    delta_tiles.forward(
        W, after, w, u, decayed_q, decayed_k, scores, kept, after, read, stored, before
    )


def _backward_call(heads, W, q, k, v, log, step, stored, before, dafter, dread):
    B, T = q.shape[:2]
    H, K = heads.num_heads, heads.head_size
    G = T // W
    specs = _specs(heads, W, lambda g: G - 1 - g)
    logs = "numbers" if log.ndim == 4 else "tokens"
    inputs = ["tokens"] * 3 + [logs, "numbers"]
    names = [*inputs, "tokens", "matrices", "matrix", "tokens"]
    outs = ["matrix", *inputs]
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (dafter, q, k, v, log, step)]
    kind = q.dtype
    return pl.pallas_call(
        functools.partial(_backward_kernel, _decays(q, log), W),
        grid=(H, B, G),
        in_specs=[specs[x] for x in names],
        out_specs=[specs[x] for x in outs],
        out_shape=shapes,
        scratch_shapes=[
            *_scratch(heads, W, q, log),
            pltpu.VMEM((W, K), kind),
            pltpu.VMEM((1, K, K), kind),
        ],
        compiler_params=COMPILER,
        interpret=interpreted(heads),
        name="delta_backward",
    )(q, k, v, log, step, stored, before, dafter, dread)


def _backward_kernel(decays, W, *refs):
    (q, k, v, log, step, stored, before, dafter, dread, dmatrix, dq, dk, dv, dlog, dstep), rest = (
        refs[:15],
        refs[15:],
    )

    @pl.when(pl.program_id(2) == 0)
    def _():
        dmatrix[...] = dafter[...]

    w, u, decayed_q, decayed_k, scores, inverse, kept, dstored, dmatrices = rest
    K = q.shape[1]
    delta_tiles.prepare(
        decays, K, q, k, v, log, step, w, u, decayed_q, decayed_k, scores.at[0], inverse, kept.at[0]
    )
    delta_tiles.backward(
        W, dmatrix, w, decayed_q, decayed_k, scores, kept, dread, dmatrix, dstored, dmatrices
    )
    delta_tiles.gradients(
        decays,
        K,
        *(q, k, v, log, step, scores.at[0], inverse, w, u, stored),
        *(dstored, dread, before.at[0], dmatrices.at[0], dq, dk, dv, dlog, dstep),
    )
