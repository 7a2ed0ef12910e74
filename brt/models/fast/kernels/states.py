"""Attention of every block to its own keys as a Pallas TPU kernel.

Plain counterparts: `brt.models.ops.attention_to_states`, `attention_by_head`
(tests/models/fast/test_attention_kernels.py).

For tokens that attend to the states of their block: no bias, no mask, any number of keys. Unit
lengths of queries, scale, softmax and dropout stay in vector memory.

Axes as in `parts`, and G blocks    Q queries and X keys of a block
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike

from brt.models.fast.kernels.parts import (
    Dropout,
    Heads,
    TileDropout,
    block_misfit,
    dot,
    for_each_tile,
    head_masks,
    interpreted,
    inverse_length,
    lane_scale,
    on_each_device,
    only,
    softmax,
    summed_over_batch,
    unit_gradient,
    upcast,
)
from brt.models.ops import at_least_float32, joined_heads

PARALLEL = pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "parallel"))
MOST = 1024
"""Queries and keys of a block that fit into 16 MiB of VMEM, with heads of 64 or 128."""


MOST_FLOAT32 = 640 * 1024
"""Queries times keys in float32 that fit with several heads in the lanes."""


def misfit(heads: Heads, queries: int, keys: int, dtype: DTypeLike) -> str | None:
    if keys == 1:  # Mosaic has no product over one element in bfloat16
        return "one key"
    if heads.per_step > 1 and dtype == jnp.float32 and queries * keys > MOST_FLOAT32:
        return f"{queries} queries and {keys} keys in float32 exceed the VMEM"
    most = heads.fitting(MOST)
    wrong = block_misfit(queries, most, "queries") or block_misfit(keys, most, "keys")
    return wrong or heads.misfit()


def attend_to_states(
    heads: Heads,
    q_BGWHK: jax.Array,
    k_BGSHK: jax.Array,
    v_BGSHK: jax.Array,
    scale_H: jax.Array,
    keep: TileDropout | None = None,
) -> jax.Array:
    """Returns attention of the queries of each block to its keys, (B, G, W, H, K).

    Arguments as in `window.attend_to_window`; keys are never normalised.
    """
    arrays = map(joined_heads, (q_BGWHK, k_BGSHK, v_BGSHK))
    return block_attention(heads, *arrays, scale_H, keep).reshape(q_BGWHK.shape)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def block_attention(
    heads: Heads,
    q_BGQA: jax.Array,
    k_BGXA: jax.Array,
    v_BGXA: jax.Array,
    scale_H: jax.Array,
    keep: TileDropout | None = None,
) -> jax.Array:
    """Returns `attend_to_states` of arrays whose heads are joined, A = H K; (B, G, Q, A)."""
    return _forward(heads, q_BGQA, k_BGXA, v_BGXA, scale_H, keep)[0]


def _specs(heads, q, k):
    """Returns the grid (P, B, G) and the blocks of its arrays."""
    Q, X, L = q.shape[2], k.shape[2], heads.lanes

    def of_block(p, b, g):
        return b, g, 0, p

    specs = {
        "queries": pl.BlockSpec((1, 1, Q, L), of_block),
        "keys": pl.BlockSpec((1, 1, X, L), of_block),
        "scale": pl.BlockSpec((1, 1, L), lambda p, b, g: (p, 0, 0)),
        "scale_gradient": pl.BlockSpec((1, 1, 1, 1, L), lambda p, b, g: (p, b, g, 0, 0)),
    }
    return (heads.num_heads // heads.per_step, *q.shape[:2]), specs


_INPUTS = ("BGQA", "BGXA", "BGXA", "H", "H")


def _forward(heads, *inputs):
    run = on_each_device(heads, functools.partial(_forward_call, heads), _INPUTS, ("BGQA",))
    (y,) = run(*inputs)
    return y, (*inputs, y)


def _backward(heads, saved, dy):
    run = functools.partial(_backward_call, heads)
    gradients = on_each_device(heads, run, (*_INPUTS, "BGQA", "BGQA"), _INPUTS[:4])(*saved, dy)
    return *gradients, None


def _forward_call(heads, q, k, v, scale_H, keep):
    grid, specs = _specs(heads, q, k)
    inputs = [q, k, v, lane_scale(heads, scale_H, q.dtype)]
    names = ["queries", "keys", "keys", "scale"]
    dropout = Dropout(heads, keep)
    y = pl.pallas_call(
        functools.partial(_forward_kernel, heads, dropout),
        grid=grid,
        in_specs=[*(specs[name] for name in names), *dropout.specs],
        out_specs=specs["queries"],
        out_shape=jax.ShapeDtypeStruct(q.shape, v.dtype),
        compiler_params=PARALLEL,
        interpret=interpreted(heads),
        name="block_attention_forward",
    )(*inputs, *dropout.inputs)
    return (y,)


def _backward_call(heads, q, k, v, scale_H, keep, y, dy):
    grid, specs = _specs(heads, q, k)
    scale_P1L = lane_scale(heads, scale_H, q.dtype)
    dscale_PBG1L = jax.ShapeDtypeStruct((*grid, 1, heads.lanes), scale_P1L.dtype)
    inputs = [q, k, v, y, dy, scale_P1L]
    names = ["queries", "keys", "keys", "queries", "queries", "scale"]
    dropout = Dropout(heads, keep)
    dq, dk, dv, dscale_PBG1L = pl.pallas_call(
        functools.partial(_backward_kernel, heads, dropout),
        grid=grid,
        in_specs=[*(specs[name] for name in names), *dropout.specs],
        out_specs=[specs[name] for name in ("queries", "keys", "keys", "scale_gradient")],
        out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (q, k, v, dscale_PBG1L)],
        scratch_shapes=[pltpu.VMEM((k.shape[2], heads.lanes), upcast(k.dtype)) for _ in "kv"],
        compiler_params=PARALLEL,
        interpret=interpreted(heads),
        name="block_attention_backward",
    )(*inputs, *dropout.inputs)
    dscale_H = dscale_PBG1L.sum(axis=(1, 2)).reshape(heads.num_heads, -1).sum(axis=1)
    (dscale_H,) = summed_over_batch(heads, dscale_H * jnp.sign(scale_H) * heads.factor)
    return dq, dk, dv, dscale_H.astype(scale_H.dtype)


block_attention.defvjp(_forward, _backward)


def _forward_kernel(heads, dropout, q, k, v, scale, *rest):
    *keep, y = rest
    first_head = pl.program_id(0) * heads.per_step

    def tile(number, rows):
        x = at_least_float32(q[0, 0, rows])
        queries = x * inverse_length(heads, x) * scale[0]
        total = jnp.zeros_like(x)
        for head, mask in enumerate(head_masks(heads)):
            weights, inverse = softmax(only(queries, mask).astype(q.dtype), k[0, 0])
            drawn = dropout.of_tile(keep, first_head + head, number)
            weights = drawn(*weights.shape)(weights)
            one = dot(weights.astype(v.dtype), v[0, 0], (1, 0)) * (inverse * dropout.factor)
            total = total + only(one, mask)
        y[0, 0, rows] = total.astype(y.dtype)

    for_each_tile(q.shape[2], tile)


def _backward_kernel(heads, dropout, q, k, v, y, dy, scale, *rest):
    *keep, dq, dk, dv, dscale, dkeys, dvalues = rest
    first_head = pl.program_id(0) * heads.per_step
    for sums in (dscale, dkeys, dvalues):
        sums[...] = jnp.zeros_like(sums)

    def tile(number, rows):
        x, gradient = at_least_float32(q[0, 0, rows]), at_least_float32(dy[0, 0, rows])
        unit = x * inverse_length(heads, x)
        queries = unit * scale[0]
        along_y = gradient * at_least_float32(y[0, 0, rows])
        gradient = gradient * dropout.factor
        dqueries = jnp.zeros_like(x)
        for head, mask in enumerate(head_masks(heads)):
            own, dy_own = (only(part, mask).astype(q.dtype) for part in (queries, gradient))
            exponentials, inverse = softmax(own, k[0, 0])
            weights = exponentials * inverse
            mean = jnp.sum(only(along_y, mask), axis=-1, keepdims=True)
            dropped = dropout.of_tile(keep, first_head + head, number)(*weights.shape)
            dvalues[...] += dot(dropped(weights).astype(dy_own.dtype), dy_own, (0, 0))
            dweights = dropped(dot(dy_own, v[0, 0], (1, 1)))
            dscores = (weights * (dweights - mean)).astype(q.dtype)
            dqueries = dqueries + only(dot(dscores, k[0, 0], (1, 0)), mask)
            dkeys[...] += dot(dscores, own, (0, 0))
        dscale[0, 0, 0] += jnp.sum(dqueries * unit, axis=0, keepdims=True)
        dq[0, 0, rows] = unit_gradient(heads, x, dqueries * scale[0]).astype(dq.dtype)

    for_each_tile(q.shape[2], tile)
    dk[0, 0], dv[0, 0] = dkeys[...].astype(dk.dtype), dvalues[...].astype(dv.dtype)
