"""A recurrent cell's loop over blocks with one Pallas TPU kernel an iteration, for all heads.

Plain counterpart: `RecurrentCell.step` in `brt.models.ops.scan_blocks`. The kernel projects the
states, normalises, and attends to the states and to two blocks of tokens. It reads a segment's
tokens without copying pairs of blocks or heads, and writes arrays of all blocks for the backward
pass. Norm, gate, and the product before the gate are XLA's: kernels of the first two would save an
estimated 1.4 % of a step of pg19_rec_fixed_skip on a TPU v4. This one saves 3.7 %, compared
with an unrolled loop with kernels of its attention.

Axes as in `parts`, and G blocks    S states    X matrices of the
states: keys, values, queries for the states and for the tokens    Y attention to states, to tokens
E = N * D, features of the gate's N products
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike

from brt.models.fast.kernels.parts import (
    Heads,
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
from brt.models.ops import at_least_float32, rms_normed

MOST = 512
"""States, and tokens of a block, that fit into VMEM in bfloat16, with heads of 64 or 128."""
ROWS = 16
"""Of a vector register of bfloat16."""
WIDEST = 1024
"""Features of the states that fit."""


class CellTokens(NamedTuple):
    """The tokens of a segment, and of the block before it."""

    keys_BTA: jax.Array
    values_BTA: jax.Array
    cached_keys_BWA: jax.Array
    cached_values_BWA: jax.Array


class CellParameters(NamedTuple):
    """Parameters of the cell; ids may be None."""

    norm_scale_D: jax.Array
    ids_SD: jax.Array | None
    matrix_XDA: jax.Array
    self_scale_H: jax.Array
    cross_scale_H: jax.Array
    gate_YAE: jax.Array
    biases: dict[str, jax.Array]


def misfit(heads: Heads, states: int, window: int, width: int, dtype: DTypeLike) -> str | None:
    most = heads.fitting(2 * MOST // jnp.dtype(dtype).itemsize)
    wrong = block_misfit(states, most, "states") or block_misfit(window, most, "tokens of a block")
    if window % ROWS and not heads.interpret:
        wrong = f"{window} tokens of a block are not a multiple of {ROWS}"
    if width > WIDEST:
        wrong = f"states have more than {WIDEST} features"
    return wrong or heads.misfit()


_TOKENS = "BTA", "BTA", "BWA", "BWA"
Update = Callable[[jax.Array, jax.Array, dict[str, jax.Array]], tuple[jax.Array, jax.Array]]
"""Maps states, the gate's products (..., E), and its biases to the next states and keep,
elementwise."""


def run_cell(
    heads: Heads,
    update: Update,
    parameters: CellParameters,
    states_BSD: jax.Array,
    tokens: CellTokens,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Updates the states with each block of a segment.

    Returns the states after the segment; keys, normalised, and values of the states before each
    block, (B, G, S, A); and keep, averaged for each block, (G,), without a gradient.
    """
    dtype = tokens.keys_BTA.dtype
    inputs = "D", "SD", "XDA", "H", "H", "YAE", "D"
    residuals = "GBSD", "GBSD", "GBSE", "GBXSA", "BGSA", "BGSA", "GBYSA"

    def narrow(parameters):
        ids_SD = parameters.ids_SD
        if ids_SD is None:
            ids_SD = jnp.zeros(states_BSD.shape[1:], dtype)
        return parameters._replace(
            ids_SD=ids_SD.astype(dtype),
            matrix_XDA=parameters.matrix_XDA.astype(dtype),
            gate_YAE=parameters.gate_YAE.astype(dtype),
        )

    def forward(parameters, states_BSD, tokens):
        axes = (*inputs, "BSD", *_TOKENS), ("BSD", "G", *residuals)
        run = on_each_device(heads, functools.partial(_forward, heads, update), *axes)
        states, keep_G, *saved = run(*narrow(parameters), states_BSD, *tokens)
        return (states, saved[4], saved[5], keep_G), (parameters, tokens, saved)

    def backward(kept, gradients):
        parameters, tokens, saved = kept
        outputs = "BSD", *_TOKENS, "GBXSA", "GBSE", "D", "SD", "H", "H", "D"
        axes = (*inputs, *_TOKENS, *residuals, "BSD", "BGSA", "BGSA"), outputs
        run = on_each_device(heads, functools.partial(_backward, heads, update), *axes)
        dstates, *rest = run(*narrow(parameters), *tokens, *saved, *gradients[:3])
        dtokens, (dheads, dgate, dnorm, dids, dself_H, dcross_H, dbiases) = rest[:4], rest[4:]
        x_GBSD, h_GBYSA = saved[1], saved[6]
        exact = functools.partial(jnp.einsum, preferred_element_type=upcast(dtype))
        dparameters = CellParameters(
            dnorm,
            None if parameters.ids_SD is None else dids,
            exact("GBSD,GBXSA->XDA", x_GBSD, dheads),
            dself_H,
            dcross_H,
            exact("GBYSA,GBSE->YAE", h_GBYSA, dgate),
            dbiases,
        )
        like = jax.tree.map(lambda x, y: x.astype(y.dtype), dparameters, parameters)
        return like, dstates, CellTokens(*dtokens)

    @jax.custom_vjp
    def run(parameters, states_BSD, tokens):
        return forward(parameters, states_BSD, tokens)[0]

    run.defvjp(forward, backward)
    return run(parameters, states_BSD, tokens)


def _sum_over_heads(heads, x):
    axis = heads.mesh_axes[1]
    return jax.lax.psum(x, axis) if axis else x


def _scales(heads, scales, dtype):
    """Returns `lane_scale` of each; the barrier keeps XLA from computing them in the loop."""
    lanes = [lane_scale(heads, scale_H, dtype) for scale_H in scales]
    return jax.lax.optimization_barrier(lanes)


def _forward(heads, update, scale_D, ids_SD, matrix, self_H, cross_H, gate, biases, *rest):
    states_BSD, *tokens = rest
    (B, T, A), W, S = tokens[0].shape, tokens[2].shape[1], states_BSD.shape[1]
    G, dtype = T // W, tokens[0].dtype
    scales = _scales(heads, (self_H, cross_H), dtype)

    def step(carry, g):
        states_BSD, *buffers = carry
        x_BSD = rms_normed(states_BSD, scale_D).astype(dtype) + ids_SD
        buffers = _forward_block(heads, g, x_BSD, matrix, *scales, *tokens, *buffers)
        h_BYSA = jax.lax.dynamic_index_in_dim(buffers[3], g, 0, keepdims=False)
        products_BSE = _sum_over_heads(heads, jnp.einsum("BYSA,YAE->BSE", h_BYSA, gate))
        after_BSD, keep = update(states_BSD, products_BSE, biases)
        return (after_BSD, *buffers), (jnp.mean(keep), states_BSD, x_BSD, products_BSE)

    shapes = (G, B, 4, S, A), (B, G, S, A), (B, G, S, A), (G, B, 2, S, A)
    buffers = [jax.lax.empty(shape, dtype) for shape in shapes]
    carry, (keep_G, *stacked) = jax.lax.scan(step, (states_BSD, *buffers), jnp.arange(G))
    states_BSD, *saved = carry
    (keep_G,) = summed_over_batch(heads, keep_G)
    if heads.mesh_axes[0]:
        keep_G = keep_G / jax.lax.axis_size(heads.mesh_axes[0])
    return states_BSD, keep_G, *stacked, *saved


def _backward(heads, update, scale_D, ids_SD, matrix, self_H, cross_H, gate, biases, *rest):
    tokens, (states_GBSD, _, products_GBSE, *saved) = rest[:4], rest[4:11]
    dstates_BSD, *dkeys_values = rest[11:]
    dtype = tokens[0].dtype
    kind = upcast(dtype)
    scales = _scales(heads, (self_H, cross_H), dtype)

    def step(carry, inputs):
        dstates_BSD, sums, *written = carry
        g, states_BSD, products_BSE = inputs
        _, back, _ = jax.vjp(update, states_BSD, products_BSE, biases, has_aux=True)
        dstates_BSD, dproducts_BSE, dbiases = back(dstates_BSD)
        dh_BYSA = jnp.einsum("BSE,YAE->BYSA", dproducts_BSE, gate)
        arrays = *scales, *tokens, *saved, dh_BYSA, *dkeys_values, *written
        written = _backward_block(heads, g, *arrays)
        dheads_BXSA = jax.lax.dynamic_index_in_dim(written[3], g, 0, keepdims=False)
        dx_BSD = _sum_over_heads(heads, jnp.einsum("BXSA,XDA->BSD", dheads_BXSA, matrix))
        _, back = jax.vjp(rms_normed, states_BSD, scale_D)
        added_BSD, dscale_D = back(dx_BSD.astype(states_BSD.dtype))
        sums = jax.tree.map(jnp.add, sums, (dscale_D, dx_BSD.sum(0, dtype=kind), dbiases))
        return (dstates_BSD + added_BSD, sums, *written), dproducts_BSE

    parts = heads.num_heads // heads.per_step
    sums = jax.tree.map(jnp.zeros_like, (scale_D, ids_SD.astype(kind), biases))
    lanes_BPYL = jnp.zeros((len(dstates_BSD), parts, 2, heads.lanes), kind)
    pending = [jnp.zeros(x.shape, kind) for x in tokens[2:]]
    buffers = [jax.lax.empty(x.shape, dtype) for x in (saved[0], *tokens[:2])]
    carry = dstates_BSD, sums, lanes_BPYL, *pending, *buffers
    blocks = jnp.arange(len(states_GBSD)), states_GBSD, products_GBSE
    carry, dproducts_GBSE = jax.lax.scan(step, carry, blocks, reverse=True)
    dstates_BSD, (dscale_D, dids_SD, dbiases), lanes_BPYL, *last = carry
    dcached, (dheads_GBXSA, *dtokens) = [x.astype(dtype) for x in last[:2]], last[2:]
    lanes_YPL = jnp.swapaxes(lanes_BPYL.sum(axis=0), 0, 1)
    dscales_YH = lanes_YPL.reshape(2, heads.num_heads, -1).sum(axis=-1) * heads.factor
    dself_H, dcross_H = dscales_YH[0] * jnp.sign(self_H), dscales_YH[1] * jnp.sign(cross_H)
    summed = summed_over_batch(heads, dscale_D, dids_SD, dself_H, dcross_H, dbiases)
    return dstates_BSD, *dtokens, *dcached, dheads_GBXSA, dproducts_GBSE, *summed


# One block of tokens: projections of the states and their two attentions. Its number is in scalar
# memory before the arrays' blocks are chosen. The last inputs are buffers of all blocks, into which
# the outputs are written.

IN_ORDER = pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary"))
_TOKEN_SPECS = "tokens", "tokens", "before", "before", "cached", "cached"


def _call(heads, kernel, g, inputs, specs, out_specs, scratch, name):
    k_BTA = next(x for x, spec in zip(inputs, specs) if spec == "tokens")
    S = next(x for x, spec in zip(inputs, specs) if spec in ("x", "states")).shape[-2]
    W, D, L = inputs[specs.index("cached")].shape[1], inputs[0].shape[-1], heads.lanes
    table = {
        "x": pl.BlockSpec((1, S, D), lambda p, b, g: (b, 0, 0)),
        "matrix": pl.BlockSpec((4, D, L), lambda p, b, g: (0, 0, p)),
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
    first = len(inputs) - len(out_specs)
    return pl.pallas_call(
        functools.partial(kernel, heads),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(heads.num_heads // heads.per_step, len(k_BTA)),
            in_specs=[table[name] for name in specs],
            out_specs=[table[name] for name in out_specs],
            scratch_shapes=scratch,
        ),
        out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in inputs[first:]],
        input_output_aliases={1 + first + i: i for i in range(len(out_specs))},
        compiler_params=IN_ORDER,
        interpret=interpreted(heads),
        name=name,
    )(g.reshape(1).astype(jnp.int32), *inputs)


def _forward_block(
    heads, g, x, matrix, self_scale, cross_scale, k, v, cached_k, cached_v, *buffers
):
    inputs = [x, matrix, self_scale, cross_scale, k, v, k, v, cached_k, cached_v, *buffers]
    specs = ["x", "matrix", "scale", "scale", *_TOKEN_SPECS, *["unused"] * 4]
    out_specs = ["heads", "states", "states", "h"]
    scratch = [pltpu.VMEM((2 * cached_k.shape[1], heads.lanes), k.dtype)] * 2
    return _call(heads, _forward_kernel, g, inputs, specs, out_specs, scratch, "cell_forward")


def _backward_block(
    heads, g, self_scale, cross_scale, k, v, cached_k, cached_v, raw, keys, values, h, *rest
):
    inputs = [self_scale, cross_scale, k, v, k, v, cached_k, cached_v, raw, keys, values, h, *rest]
    specs = ["scale", "scale", *_TOKEN_SPECS, "heads", "states", "states", "h"]
    specs += ["dh", "states", "states", "dscales", "cached", "cached", *["unused"] * 3]
    out_specs = ["dscales", "cached", "cached", "heads", "tokens", "tokens"]
    W, S, L = cached_k.shape[1], keys.shape[2], heads.lanes
    scratch = [pltpu.VMEM((2 * W, L), k.dtype)] * 2
    scratch += [pltpu.VMEM((size, L), upcast(k.dtype)) for size in (2 * W, 2 * W, S, S)]
    return _call(heads, _backward_kernel, g, inputs, specs, out_specs, scratch, "cell_backward")


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
