"""The cell's kernel for one block of tokens: projections of the states and their two attentions.

`cell` calls it in its loop; axes as there. The block's number is in scalar memory before the
arrays' blocks are chosen. Outputs are written into buffers of all blocks.
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from brt.models.fast.kernels.parts import (
    dot,
    for_each_tile,
    head_masks,
    interpreted,
    inverse_length,
    only,
    softmax,
    unit_gradient,
    upcast,
)
from brt.models.ops import at_least_float32

IN_ORDER = pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary"))


def _specs(heads, W, S):
    L = heads.lanes
    return {
        "x": lambda D: pl.BlockSpec((1, S, D), lambda p, b, g: (b, 0, 0)),
        "matrix": lambda D: pl.BlockSpec((4, D, L), lambda p, b, g: (0, 0, p)),
        "scale": pl.BlockSpec((1, 1, L), lambda p, b, g: (p, 0, 0)),
        "tokens": pl.BlockSpec((1, W, L), lambda p, b, g: (b, g[0], p)),
        "before": pl.BlockSpec((1, W, L), lambda p, b, g: (b, jnp.maximum(g[0] - 1, 0), p)),
        "cached": pl.BlockSpec((1, W, L), lambda p, b, g: (b, 0, p)),
        "states": pl.BlockSpec((1, 1, S, L), lambda p, b, g: (b, g[0], 0, p)),
        "heads": pl.BlockSpec((1, 1, 4, S, L), lambda p, b, g: (g[0], b, 0, 0, p)),
        "h": pl.BlockSpec((1, 1, 2, S, L), lambda p, b, g: (g[0], b, 0, 0, p)),
        "dh": pl.BlockSpec((1, 2, S, L), lambda p, b, g: (b, 0, 0, p)),
        "dscales": pl.BlockSpec((1, 1, 2, L), lambda p, b, g: (b, p, 0, 0)),
        "unused": pl.BlockSpec(memory_space=pl.ANY),
    }


_TOKEN_SPECS = "tokens", "tokens", "before", "before", "cached", "cached"


def _call(heads, kernel, g, inputs, specs, outputs, out_specs, scratch, aliases, name):
    k_BTA = next(x for x, spec in zip(inputs, specs) if spec == "tokens")
    S = next(x for x, spec in zip(inputs, specs) if spec in ("x", "states")).shape[-2]
    table = _specs(heads, inputs[specs.index("cached")].shape[1], S)
    D = inputs[0].shape[-1]

    def spec(name):
        return table[name](D) if name in ("x", "matrix") else table[name]

    return pl.pallas_call(
        functools.partial(kernel, heads),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(heads.num_heads // heads.per_step, len(k_BTA)),
            in_specs=[spec(name) for name in specs],
            out_specs=[spec(name) for name in out_specs],
            scratch_shapes=scratch,
        ),
        out_shape=outputs,
        input_output_aliases={1 + i: o for i, o in aliases.items()},
        compiler_params=IN_ORDER,
        interpret=interpreted(heads),
        name=name,
    )(g.reshape(1).astype(jnp.int32), *inputs)


def forward(heads, g, x, matrix, self_scale, cross_scale, k, v, cached_k, cached_v, *buffers):
    inputs = [x, matrix, self_scale, cross_scale, k, v, k, v, cached_k, cached_v, *buffers]
    specs = ["x", "matrix", "scale", "scale", *_TOKEN_SPECS, *["unused"] * 4]
    W, L = cached_k.shape[1], heads.lanes
    scratch = [pltpu.VMEM((2 * W, L), k.dtype)] * 2
    outputs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in buffers]
    out_specs = ["heads", "states", "states", "h"]
    aliases = {len(inputs) - 4 + i: i for i in range(4)}
    return _call(
        *(heads, _forward_kernel, g, inputs, specs, outputs, out_specs, scratch, aliases),
        "cell_forward",
    )


def backward(
    heads, g, self_scale, cross_scale, k, v, cached_k, cached_v, raw, keys, values, h, *rest
):
    dh, dkeys, dvalues, *written = rest
    inputs = [self_scale, cross_scale, k, v, k, v, cached_k, cached_v, raw, keys, values, h]
    inputs += [dh, dkeys, dvalues, *written]
    specs = ["scale", "scale", *_TOKEN_SPECS, "heads", "states", "states", "h"]
    specs += ["dh", "states", "states", "dscales", "cached", "cached", *["unused"] * 3]
    W, S, L = cached_k.shape[1], keys.shape[2], heads.lanes
    kind = upcast(k.dtype)
    shapes = [2 * W, 2 * W, S, S]
    scratch = [pltpu.VMEM((2 * W, L), k.dtype)] * 2
    scratch += [pltpu.VMEM((size, L), kind) for size in shapes]
    outputs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in written]
    out_specs = ["dscales", "cached", "cached", "heads", "tokens", "tokens"]
    aliases = {len(inputs) - 6 + i: i for i in range(6)}
    return _call(
        *(heads, _backward_kernel, g, inputs, specs, outputs, out_specs, scratch, aliases),
        "cell_backward",
    )


# The kernels.


def _load_tokens(g, tokens, keys, values):
    k, v, before_k, before_v, cached_k, cached_v = tokens
    W, is_first = k.shape[1], g[0] == 0

    @pl.when(is_first)
    def _():
        keys[:W], values[:W] = cached_k[0], cached_v[0]

    @pl.when(jnp.logical_not(is_first))
    def _():
        keys[:W], values[:W] = before_k[0], before_v[0]

    keys[W:], values[W:] = k[0], v[0]


def _forward_kernel(heads, g, x, matrix, self_scale, cross_scale, *refs):
    tokens, (raw, keys, values, h, token_keys, token_values) = refs[:6], refs[10:]
    _load_tokens(g, tokens, token_keys, token_values)
    for i in range(4):
        raw[0, 0, i] = dot(x[0], matrix[i], (1, 0)).astype(raw.dtype)
    k = at_least_float32(raw[0, 0, 0])
    keys[0, 0] = (k * inverse_length(heads, k)).astype(keys.dtype)
    values[0, 0] = raw[0, 0, 1]

    def tile(_, rows):
        attentions = (
            (self_scale, keys[0, 0], values[0, 0]),
            (cross_scale, token_keys[...], token_values[...]),
        )
        for i, (scale, k, v) in enumerate(attentions):
            q = at_least_float32(raw[0, 0, 2 + i, rows])
            queries = q * inverse_length(heads, q) * scale[0]
            total = jnp.zeros_like(q)
            for mask in head_masks(heads):
                weights, inverse = softmax(only(queries, mask).astype(raw.dtype), k)
                total = total + only(dot(weights.astype(v.dtype), v, (1, 0)) * inverse, mask)
            h[0, 0, i, rows] = total.astype(h.dtype)

    for_each_tile(x.shape[1], tile)


def _backward_kernel(heads, g, self_scale, cross_scale, *refs):
    tokens, (raw, keys, values, h, dh, dk, dv, sums, pending_k, pending_v) = refs[:6], refs[6:16]
    dscales, new_pending_k, new_pending_v, draw, dk_tokens, dv_tokens = refs[19:25]
    token_keys, token_values, dtoken_keys, dtoken_values, dkeys, dvalues = refs[25:]
    W = tokens[0].shape[1]
    _load_tokens(g, tokens, token_keys, token_values)
    for total, start in ((dtoken_keys, pending_k[0]), (dtoken_values, pending_v[0])):
        total[:W], total[W:] = jnp.zeros_like(start), start
    dkeys[...], dvalues[...] = at_least_float32(dk[0, 0]), at_least_float32(dv[0, 0])
    dscales[...] = sums[...]

    def tile(_, rows):
        attentions = (
            (self_scale, keys[0, 0], values[0, 0], dkeys, dvalues),
            (cross_scale, token_keys[...], token_values[...], dtoken_keys, dtoken_values),
        )
        for i, (scale, k, v, k_sums, v_sums) in enumerate(attentions):
            q = at_least_float32(raw[0, 0, 2 + i, rows])
            gradient = at_least_float32(dh[0, i, rows])
            unit = q * inverse_length(heads, q)
            queries = unit * scale[0]
            along_h = gradient * at_least_float32(h[0, 0, i, rows])
            dqueries = jnp.zeros_like(q)
            for mask in head_masks(heads):
                own, dh_own = (only(part, mask).astype(k.dtype) for part in (queries, gradient))
                exponentials, inverse = softmax(own, k)
                weights = exponentials * inverse
                mean = jnp.sum(only(along_h, mask), axis=-1, keepdims=True)
                v_sums[...] += dot(weights.astype(k.dtype), dh_own, (0, 0))
                dscores = (weights * (dot(dh_own, v, (1, 1)) - mean)).astype(k.dtype)
                dqueries = dqueries + only(dot(dscores, k, (1, 0)), mask)
                k_sums[...] += dot(dscores, own, (0, 0))
            dscales[0, 0, i : i + 1] += jnp.sum(dqueries * unit, axis=0, keepdims=True)
            dq = unit_gradient(heads, q, dqueries * scale[0])
            draw[0, 0, 2 + i, rows] = dq.astype(draw.dtype)

    for_each_tile(keys.shape[2], tile)
    k = at_least_float32(raw[0, 0, 0])
    draw[0, 0, 0] = unit_gradient(heads, k, dkeys[...]).astype(draw.dtype)
    draw[0, 0, 1] = dvalues[...].astype(draw.dtype)
    dk_tokens[0] = dtoken_keys[W:].astype(dk_tokens.dtype)
    dv_tokens[0] = dtoken_values[W:].astype(dv_tokens.dtype)
    new_pending_k[0], new_pending_v[0] = dtoken_keys[:W], dtoken_values[:W]
