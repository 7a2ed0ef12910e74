"""A recurrent cell's loop over blocks with one Pallas TPU kernel an iteration, for all heads.

Plain counterpart: `RecurrentCell.step` in `loop_weights.scan`
(tests/models/test_kernel_attention.py, and alone in test_attention_kernels.py). The kernel projects
the states, normalises, and attends to the states and to two blocks of tokens. It reads the tokens
as projected, without copies of pairs of blocks or of heads, and writes arrays of all blocks for the
backward pass and the tokens. Norm and gate have kernels of their own (`update`); the product
before the gate is XLA's.

Axes as in `parts`, and G blocks    S states    X matrices of the
states: keys, values, queries for the states and for the tokens    Y attention to states, to tokens
E = N * D, features of the gate's N products
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike

from brt.models.fast.kernels import update as update_kernel
from brt.models.fast.kernels.parts import (
    TILE,
    Heads,
    dot,
    head_masks,
    interpreted,
    inverse_length,
    lane_scale,
    on_each_device,
    only,
    softmax,
    summed_over_batch,
    tile_size,
    unit_gradient,
    upcast,
)
from brt.models.layers.precision import at_least_float32

IN_ORDER = pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary"))
MOST = 512
"""States, and tokens of a block, that fit into 16 MiB of VMEM, in bfloat16."""
WIDEST = 1024
"""Features of the states that fit."""


class CellTokens(NamedTuple):
    """The tokens of a segment, keys not normalised, and of the block before it, keys normalised."""

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
    """Returns why the kernel cannot compute a cell, or None."""
    most = 2 * MOST // jnp.dtype(dtype).itemsize
    for size, name in ((states, "states"), (window, "tokens of a block")):
        if size > most or (size % TILE and size > TILE):
            return f"{size} {name} of {dtype} are not a multiple of {TILE} up to {most}"
    if width > WIDEST:
        return f"states of more than {WIDEST} features"
    return heads.misfit()


_TOKENS = "BTA", "BTA", "BWA", "BWA"


def run_cell(
    heads: Heads,
    update: update_kernel.Update,
    parameters: CellParameters,
    states_BSD: jax.Array,
    tokens: CellTokens,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Updates the states with each block of a segment.

    Returns the states after the segment; keys, normalised, and values of the states before each
    block, (B, G, S, A); and keep, averaged for each block, (G,), without a gradient.
    """
    biases = tuple(parameters.biases)
    dtype = tokens.keys_BTA.dtype
    per_device = functools.partial(on_each_device, heads)
    inputs = ("D", "SD", "XDA", "H", "H", "YAE", *["D"] * len(biases))
    residuals = ("GBSD", "GBSD", "GBSE", "GBXSA", "BGSA", "BGSA", "GBYSA")

    def flat(parameters):
        ids_SD = parameters.ids_SD
        if ids_SD is None:
            ids_SD = jnp.zeros(states_BSD.shape[1:], dtype)
        arrays = parameters._replace(
            ids_SD=ids_SD.astype(dtype),
            matrix_XDA=parameters.matrix_XDA.astype(dtype),
            gate_YAE=parameters.gate_YAE.astype(dtype),
        )
        return (*arrays[:-1], *parameters.biases.values())

    def forward(parameters, states_BSD, tokens):
        run = per_device(
            functools.partial(_forward, heads, update, biases),
            (*inputs, "BSD", *_TOKENS),
            ("BSD", "G", *residuals),
        )
        states, keep_G, *saved = run(*flat(parameters), states_BSD, *tokens)
        return (states, saved[4], saved[5], keep_G), (parameters, tokens, saved)

    def backward(kept, gradients):
        parameters, tokens, saved = kept
        run = per_device(
            functools.partial(_backward, heads, update, biases),
            (*inputs, *_TOKENS, *residuals, "BSD", "BGSA", "BGSA"),
            ("BSD", *_TOKENS, "GBXSA", "GBSE", "D", "SD", "H", "H", *["D"] * len(biases)),
        )
        dstates, *rest = run(*flat(parameters), *tokens, *saved, *gradients[:3])
        dtokens, (dheads, dgate, dnorm, dids, dself_H, dcross_H), dbiases = (
            rest[:4],
            rest[4:10],
            rest[10:],
        )
        x_GBSD, h_GBYSA = saved[1], saved[6]
        exact = functools.partial(jnp.einsum, preferred_element_type=upcast(dtype))
        dparameters = CellParameters(
            dnorm,
            None if parameters.ids_SD is None else dids,
            exact("GBSD,GBXSA->XDA", x_GBSD, dheads),
            dself_H,
            dcross_H,
            exact("GBYSA,GBSE->YAE", h_GBYSA, dgate),
            dict(zip(biases, dbiases)),
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
    """Returns `lane_scale` of each; with the barrier XLA does not compute them in the loop."""
    lanes = [lane_scale(heads, scale_H, dtype) for scale_H in scales]
    return jax.lax.optimization_barrier(lanes)


def _forward(heads, update, names, scale_D, ids_SD, matrix, self_H, cross_H, gate, *rest):
    biases = dict(zip(names, rest))
    states_BSD, *tokens = rest[len(names) :]
    (B, T, A), W, S = tokens[0].shape, tokens[2].shape[1], states_BSD.shape[1]
    G, dtype = T // W, tokens[0].dtype
    scales = _scales(heads, (self_H, cross_H), dtype)

    def step(carry, g):
        states_BSD, states, x, products, keep, *buffers = carry
        states, x = update_kernel.normed(heads, g, states_BSD, scale_D, ids_SD, states, x)
        buffers = _forward_call(heads, g, x, matrix, *scales, *tokens, *buffers)
        h_BYSA = jax.lax.dynamic_index_in_dim(buffers[3], g, 0, keepdims=False)
        products_BSE = _sum_over_heads(heads, jnp.einsum("BYSA,YAE->BSE", h_BYSA, gate))
        inputs = states_BSD, products_BSE, biases, products, keep
        products, keep, states_BSD = update_kernel.updated(heads, update, g, *inputs)
        return (states_BSD, states, x, products, keep, *buffers), None

    keep_BI1D = update_kernel.sum_per_tile(states_BSD, 1)
    shapes = (G, B, 4, S, A), (B, G, S, A), (B, G, S, A), (G, B, 2, S, A)
    buffers = [
        jax.lax.empty((G, *states_BSD.shape), states_BSD.dtype),
        jax.lax.empty((G, *states_BSD.shape), dtype),
        jax.lax.empty((G, B, S, gate.shape[2]), dtype),
        jax.lax.empty((G, *keep_BI1D.shape), keep_BI1D.dtype),
        *(jax.lax.empty(shape, dtype) for shape in shapes),
    ]
    carry, _ = jax.lax.scan(step, (states_BSD, *buffers), jnp.arange(G))
    states_BSD, states_GBSD, x_GBSD, products_GBSE, keep_GBI1D, *saved = carry
    keep_G = jnp.mean(keep_GBI1D, axis=(1, 2, 3, 4))
    (keep_G,) = summed_over_batch(heads, keep_G)
    if heads.mesh_axes[0]:
        keep_G = keep_G / jax.lax.axis_size(heads.mesh_axes[0])
    return states_BSD, keep_G, states_GBSD, x_GBSD, products_GBSE, *saved


def _backward(heads, update, names, scale_D, ids_SD, matrix, self_H, cross_H, gate, *rest):
    biases, rest = dict(zip(names, rest)), rest[len(names) :]
    tokens, (states_GBSD, _, products_GBSE, *saved) = rest[:4], rest[4:11]
    gradients = rest[11:]
    dstates_BSD, *dkeys_values = gradients
    dtype = tokens[0].dtype
    kind = upcast(dtype)
    scales = _scales(heads, (self_H, cross_H), dtype)

    # The kernels of norm and gate compute these products, unless devices have parts of a sum.
    axis = heads.mesh_axes[1]
    separate = matrix.size * matrix.dtype.itemsize > update_kernel.MOST
    separate = separate or (axis is not None and jax.lax.axis_size(axis) > 1)
    gate_is_separate = gate.size * gate.dtype.itemsize > update_kernel.MOST_OF_GATE

    def step(carry, g):
        dstates, dscale, all_dx, dbiases, dproducts, dh_BYSA, *written = carry
        gated = dstates, states_GBSD, products_GBSE, biases, dproducts, dbiases, gate
        to_write = None if gate_is_separate else dh_BYSA
        changed = update_kernel.update_gradients(heads, update, g, *gated, to_write)
        dproducts, *dh, dbiases, dstates = changed
        if gate_is_separate:
            dproducts_BSE = jax.lax.dynamic_index_in_dim(dproducts, g, 0, keepdims=False)
            dh = [jnp.einsum("BSE,YAE->BYSA", dproducts_BSE, gate)]
        (dh_BYSA,) = dh
        inputs: list[Any] = [*scales, *tokens, *saved, dh_BYSA, *dkeys_values, *written]
        written = _backward_call(heads, g, *inputs)
        dx = [written[3], matrix]
        if separate:
            dheads_BXSA = jax.lax.dynamic_index_in_dim(written[3], g, 0, keepdims=False)
            dx_BSD = jnp.einsum("BXSA,XDA->BSD", dheads_BXSA, matrix)
            dx = [_sum_over_heads(heads, dx_BSD)]
        inputs = [dx, states_GBSD, scale_D, dstates, all_dx, dscale]
        all_dx, *sums = update_kernel.norm_gradients(heads, g, *inputs)
        return (*sums, all_dx, dbiases, dproducts, dh_BYSA, *written), None

    parts = heads.num_heads // heads.per_step
    sums = [
        update_kernel.sum_per_tile(dstates_BSD, 1),
        jax.lax.empty(states_GBSD.shape, dtype),
        update_kernel.sum_per_tile(dstates_BSD, len(biases)),
    ]
    lanes_BPYL = jnp.zeros((len(dstates_BSD), parts, 2, heads.lanes), kind)
    pending = [jnp.zeros(x.shape, kind) for x in tokens[2:]]
    buffers = [jax.lax.empty(x.shape, dtype) for x in (saved[0], *tokens[:2])]
    dproducts_GBSE = jax.lax.empty(products_GBSE.shape, dtype)
    dh_BYSA = jax.lax.empty(saved[3].shape[1:], dtype)
    carry = (dstates_BSD, *sums, dproducts_GBSE, dh_BYSA, lanes_BPYL, *pending, *buffers)
    carry, _ = jax.lax.scan(step, carry, jnp.arange(len(states_GBSD)), reverse=True)
    dstates_BSD, dscale_BI1D, dx_GBSD, dbiases_BIZD, dproducts_GBSE, _, lanes_BPYL, *last = carry
    dcached, (dheads_GBXSA, *dtokens) = [x.astype(dtype) for x in last[:2]], last[2:]
    lanes_YPL = jnp.swapaxes(lanes_BPYL.sum(axis=0), 0, 1)
    dscales_YH = lanes_YPL.reshape(2, heads.num_heads, -1).sum(axis=-1) * heads.factor
    dself_H, dcross_H = dscales_YH[0] * jnp.sign(self_H), dscales_YH[1] * jnp.sign(cross_H)
    dids_SD = dx_GBSD.sum(axis=(0, 1), dtype=kind)
    dbiases_ZD = dbiases_BIZD.sum(axis=(0, 1))
    dscale_D = dscale_BI1D.sum(axis=(0, 1, 2))
    summed = summed_over_batch(heads, dscale_D, dids_SD, dself_H, dcross_H, *dbiases_ZD)
    return dstates_BSD, *dtokens, *dcached, dheads_GBXSA, dproducts_GBSE, *summed


# Calls of the kernels; the number of the block is in scalar memory before the blocks are chosen.


def _specs(heads, W, S):
    L = heads.lanes
    return {
        "x": lambda D: pl.BlockSpec((1, 1, S, D), lambda p, b, g: (g[0], b, 0, 0)),
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


def _forward_call(heads, g, x, matrix, self_scale, cross_scale, k, v, cached_k, cached_v, *buffers):
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


def _backward_call(
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


def _for_each_tile(size, tile):
    Q = tile_size(size)

    def call(number, _):
        tile(pl.ds(pl.multiple_of(number * Q, Q), Q))

    jax.lax.fori_loop(0, size // Q, call, None, unroll=True)


def _load_tokens(heads, g, tokens, keys, values):
    """Fills the keys, normalised, and values of the block before and this one."""
    k, v, before_k, before_v, cached_k, cached_v = tokens
    W, is_first = k.shape[1], g[0] == 0

    def unit(x):
        x = at_least_float32(x)
        return (x * inverse_length(heads, x)).astype(keys.dtype)

    @pl.when(is_first)
    def _():
        keys[:W], values[:W] = cached_k[0], cached_v[0]

    @pl.when(jnp.logical_not(is_first))
    def _():
        keys[:W], values[:W] = unit(before_k[0]), before_v[0]

    keys[W:], values[W:] = unit(k[0]), v[0]


def _forward_kernel(heads, g, x, matrix, self_scale, cross_scale, *refs):
    tokens, (raw, keys, values, h, token_keys, token_values) = refs[:6], refs[10:]
    _load_tokens(heads, g, tokens, token_keys, token_values)
    for i in range(4):
        raw[0, 0, i] = dot(x[0, 0], matrix[i], (1, 0)).astype(raw.dtype)
    k = at_least_float32(raw[0, 0, 0])
    keys[0, 0] = (k * inverse_length(heads, k)).astype(keys.dtype)
    values[0, 0] = raw[0, 0, 1]

    def tile(rows):
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

    _for_each_tile(x.shape[2], tile)


def _backward_kernel(heads, g, self_scale, cross_scale, *refs):
    tokens, (raw, keys, values, h, dh, dk, dv, sums, pending_k, pending_v) = refs[:6], refs[6:16]
    dscales, new_pending_k, new_pending_v, draw, dk_tokens, dv_tokens = refs[19:25]
    token_keys, token_values, dtoken_keys, dtoken_values, dkeys, dvalues = refs[25:]
    W = tokens[0].shape[1]
    _load_tokens(heads, g, tokens, token_keys, token_values)
    for total, start in ((dtoken_keys, pending_k[0]), (dtoken_values, pending_v[0])):
        total[:W], total[W:] = jnp.zeros_like(start), start
    dkeys[...], dvalues[...] = at_least_float32(dk[0, 0]), at_least_float32(dv[0, 0])
    dscales[...] = sums[...]

    def tile(rows):
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

    _for_each_tile(keys.shape[2], tile)
    k = at_least_float32(raw[0, 0, 0])
    draw[0, 0, 0] = unit_gradient(heads, k, dkeys[...]).astype(draw.dtype)
    draw[0, 0, 1] = dvalues[...].astype(draw.dtype)
    k = at_least_float32(tokens[0][0])
    dk_tokens[0] = unit_gradient(heads, k, dtoken_keys[W:]).astype(dk_tokens.dtype)
    dv_tokens[0] = dtoken_values[W:].astype(dv_tokens.dtype)
    new_pending_k[0], new_pending_v[0] = dtoken_keys[:W], dtoken_values[:W]
