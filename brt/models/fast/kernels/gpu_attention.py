"""Attention to windows and to states as Pallas Triton kernels for NVIDIA GPUs.

Plain counterparts: `brt.models.ops.window_attention`, `attention_to_states`, `attention_by_head`
(tests/models/fast/test_gpu_kernels.py, in interpret mode). `gpu_tiles` has the mathematics,
`gpu_launch` tiles and memory layout.

The backward pass has two kernels without atomic operations, so it is the same bit for bit in every
run. The first recomputes the scores, with their bias and dropout, and gives the gradients of keys,
values and scores; the second multiplies those of the scores by the keys. The gradients of the
scores, (B, H, G, F, Q) in the activations' type, are in memory between them: the bias needs them
anyway, summed over batch and frames.

Axes as in `gpu_tiles`.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from brt.models.fast.kernels import gpu_launch, gpu_tiles
from brt.models.fast.kernels.gpu_launch import Layout, call
from brt.models.fast.kernels.gpu_tiles import LOG2_E, Tiles
from brt.models.fast.kernels.parts import (
    Heads,
    TileDropout,
    on_each_device,
    summed_over_batch,
    upcast,
)
from brt.models.ops import HIDDEN, at_least_float32, unit_heads, window_table


def padded_bias(bias_HW: jax.Array | None, frame: int) -> jax.Array | None:
    """Returns the base-2 bias of distances 1 - Q ... W + Q, (H, W + 2Q), with hidden ones."""
    if bias_HW is None:
        return None
    bias_HW = at_least_float32(bias_HW)
    hidden_HQ = jnp.full((len(bias_HW), frame), HIDDEN, bias_HW.dtype)
    return jnp.concatenate([hidden_HQ, bias_HW, hidden_HQ], axis=1) * LOG2_E


def attend_to_window(
    heads: Heads,
    q_BTHK: jax.Array,
    k_BTHK: jax.Array,
    v_BTHK: jax.Array,
    cached_k_BWHK: jax.Array,
    cached_v_BWHK: jax.Array,
    scale_H: jax.Array,
    bias_HW: jax.Array,
    dropout: TileDropout | None = None,
) -> jax.Array:
    """Returns the `attended_BTHK` of `ops.window_attention`, whose `window` is cached_k, cached_v.

    heads: `qk_norm`: queries and keys get unit length. bias_HW: of the distances 1 ... W. dropout:
    of its seeds, those of the first tile.
    """
    sizes = _Sizes(cached_k_BWHK.shape[1])
    arrays = q_BTHK, k_BTHK, v_BTHK, cached_k_BWHK, cached_v_BWHK, scale_H, bias_HW
    return _attend(heads, sizes, *arrays, dropout)


def attend_to_states(
    heads: Heads,
    q_BGWHK: jax.Array,
    k_BGSHK: jax.Array,
    v_BGSHK: jax.Array,
    scale_H: jax.Array,
    dropout: TileDropout | None = None,
) -> jax.Array:
    """Returns attention of the queries of each block to its keys, (B, G, W, H, K).

    Arguments as in `attend_to_window`; keys are never normalised.
    """
    sizes = _Sizes(q_BGWHK.shape[2], k_BGSHK.shape[2])
    q, k, v = (x.reshape(len(x), -1, *x.shape[3:]) for x in (q_BGWHK, k_BGSHK, v_BGSHK))
    return _attend(heads, sizes, q, k, v, None, None, scale_H, None, dropout).reshape(q_BGWHK.shape)


class _Sizes(NamedTuple):
    window: int
    states: int = 0

    @property
    def name(self) -> str:
        return "states" if self.states else "window"

    def launches(self, x_BTHK: jax.Array) -> gpu_launch.Launches:
        keys = self.states or self.window
        return gpu_launch.launches(self.window, keys, x_BTHK.shape[3], x_BTHK.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attend(heads, sizes, q, k, v, cached_k, cached_v, scale_H, bias_HW, dropout):
    arrays = q, k, v, cached_k, cached_v, scale_H, bias_HW
    return _forward(heads, sizes, *arrays, dropout)[0]


# G: tokens of all blocks.
_INPUTS = "BGHK", "BGHK", "BGHK", "BWHK", "BWHK", "H", "HW"
_SEEDS, _OF_QUERIES = "HS", "BHG"


def _split(dropout):
    return (0.0, None) if dropout is None else (dropout.rate, dropout.seeds_HN2[:, 0])


def _forward(heads, sizes, *inputs):
    *arrays, dropout = inputs
    rate, seeds = _split(dropout)
    run = functools.partial(_forward_call, heads, sizes, rate)
    outputs = "BGHK", _OF_QUERIES, _OF_QUERIES
    y, *saved = on_each_device(heads, run, (*_INPUTS, _SEEDS), outputs)(*arrays, seeds)
    return y, (*inputs, y, *saved)


def _backward(heads, sizes, saved, dy):
    *arrays, dropout, y, log_sum, factor = saved
    rate, seeds = _split(dropout)
    run = functools.partial(_backward_call, heads, sizes, rate)
    axes = *_INPUTS, _SEEDS, "BGHK", _OF_QUERIES, _OF_QUERIES, "BGHK"
    given = *arrays, seeds, y, log_sum, factor, dy
    return *on_each_device(heads, run, axes, _INPUTS)(*given), None


_attend.defvjp(_forward, _backward)


def _parts(sizes, of_cache, of_segment):
    return (of_segment,) if sizes.states else (of_cache, of_segment)


def _forward_call(heads, sizes, rate, q, k, v, cached_k, cached_v, scale_H, bias_HW, seeds):
    B, T, H, _ = q.shape
    launch = sizes.launches(q).forward
    Q = launch.queries
    unit = heads.qk_norm
    tiles = Tiles(sizes.window, Q, Q, launch.keys, unit, rate, sizes.states)
    layout, kind = Layout(H), upcast(q.dtype)
    k = unit_heads(k) if unit and not sizes.states else k
    parts = _parts(sizes, (cached_k, cached_v), (k, v))
    inputs = (
        layout.tile(q, Q),
        jax.tree.map(layout.every, parts),
        layout.of_head(scale_H.astype(kind)),
        layout.of_head(padded_bias(bias_HW, Q)),
        layout.of_head(seeds),
    )
    of_queries = layout.of_queries(jax.ShapeDtypeStruct((B, H, T), kind), Q)
    y = jax.ShapeDtypeStruct(q.shape, v.dtype)
    outputs = layout.tile(y, Q), of_queries, of_queries
    body, name = functools.partial(gpu_tiles.forward, tiles), f"{sizes.name}_forward"
    flops = 2 * 2 * q.size * tiles.frame_keys
    return call(body, launch, heads, (T // Q, B * H), inputs, outputs, name, flops)


def _backward_call(heads, sizes, rate, *arrays):
    q, raw_k, v, cached_k, cached_v, scale_H, bias_HW, seeds, y, log_sum, factor, dy = arrays
    B, T, H, K = q.shape
    launch = sizes.launches(q)
    Q, X = launch.forward.queries, launch.of_keys.keys
    unit, W = heads.qk_norm, sizes.window
    tiles = Tiles(W, Q, launch.of_keys.queries, X, unit, rate, sizes.states)
    layout, kind, F = Layout(H), upcast(q.dtype), tiles.frame_keys
    mean_BTH = jnp.sum(at_least_float32(y) * at_least_float32(dy), axis=-1)
    of_queries = log_sum, factor, jnp.moveaxis(mean_BTH, 1, 2)
    of_scores = jax.ShapeDtypeStruct((B, H, T // Q, F, Q), q.dtype)

    def of_keys(offset, name, pairs, raw_k, k, v, before=None):
        inputs = (
            layout.every(q),
            raw_k if raw_k is None else layout.tile(raw_k, X),
            *(layout.tile(x, X) for x in (k, v)),
            layout.of_head(padded_bias(bias_HW, Q)),
            *map(layout.of_batch, of_queries),
            layout.every(dy),
            layout.of_head(seeds),
            before if before is None else layout.of_batch(before),
        )
        body = functools.partial(gpu_tiles.backward_of_keys, tiles, offset)
        outputs = layout.tile(k, X), layout.tile(v, X), layout.of_batch(of_scores)
        # A second call adds to the results of the first.
        last = len(jax.tree.leaves(inputs, is_leaf=lambda x: isinstance(x, gpu_launch.Block))) - 1
        aliases = {} if before is None else {last: 2}
        grid = k.shape[1] // X, B * H
        name = f"{sizes.name}_backward_of_{name}"
        number = B * H * (T * F * (1 if before is None else 2) - pairs)  # of other scores
        untouched = number * q.dtype.itemsize
        flops = 4 * 2 * B * H * K * pairs
        options = dict(flops=flops, untouched=untouched, input_output_aliases=aliases)
        return call(body, launch.of_keys, heads, grid, inputs, outputs, name, **options)

    if sizes.states:
        k, dcached_k, dcached_v = raw_k, None, None
        dk, dv, dscores = of_keys(0, "keys", T * F, None, k, v)
    else:
        k = unit_heads(raw_k) if unit else raw_k
        pairs = W * F // 2  # of queries and cached keys
        dcached_k, dcached_v, dscores = of_keys(0, "cache", pairs, None, cached_k, cached_v)
        raw_k = raw_k if unit else None
        dk, dv, dscores = of_keys(W, "keys", T * F - pairs, raw_k, k, v, dscores)

    tiles = tiles._replace(queries=Q, keys=launch.of_queries.keys)
    inputs = (
        layout.tile(q, Q),
        jax.tree.map(layout.every, _parts(sizes, (cached_k,), (k,))),
        layout.of_head(scale_H.astype(kind)),
        layout.each(dscores),
    )
    outputs = layout.tile(q, Q), layout.each(jax.ShapeDtypeStruct((B, H, T // Q), kind))
    body = functools.partial(gpu_tiles.backward_of_queries, tiles)
    grid, name = (T // Q, B * H), f"{sizes.name}_backward_of_queries"
    flops = 2 * q.size * F
    dq, dscale_BHG = call(body, launch.of_queries, heads, grid, inputs, outputs, name, flops)

    dscale_H = jnp.sum(dscale_BHG, axis=(0, 2)) * jnp.sign(scale_H)
    dbias_HW = None if bias_HW is None else _bias_gradient(bias_HW, dscores)
    dscale_H, dbias_HW = summed_over_batch(heads, dscale_H, dbias_HW)
    return dq, dk, dv, dcached_k, dcached_v, dscale_H.astype(scale_H.dtype), dbias_HW


def _bias_gradient(bias_HW, dscores_BHGFQ):
    kind, Q = upcast(dscores_BHGFQ.dtype), dscores_BHGFQ.shape[-1]
    dtable_HQF = jnp.swapaxes(jnp.sum(dscores_BHGFQ, axis=(0, 2), dtype=kind), 1, 2)
    expand = functools.partial(window_table, queries=Q)
    (dbias_HW,) = jax.vjp(expand, jnp.zeros(bias_HW.shape, kind))[1](dtable_HQF)
    return dbias_HW.astype(bias_HW.dtype)
