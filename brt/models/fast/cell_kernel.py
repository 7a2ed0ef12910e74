"""A recurrent cell's loop over blocks with one Pallas TPU kernel an iteration, for all heads.

Plain counterpart: `RecurrentCell.step` in `loop_weights.scan`
(tests/models/test_kernel_attention.py, and alone in test_attention_kernels.py). The kernel projects
the states, normalises, and attends to the states and to two blocks of tokens. It reads the tokens
as projected, without copies of pairs of blocks or of heads, and writes arrays of all blocks for the
backward pass and the tokens. Norm, gate and their gradients are XLA's.

Axes as in `kernel_parts`, and G blocks    S states    X matrices of the
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

from brt.models.fast.kernel_parts import (
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
from brt.models.fast.norms import rms_normed
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


Update = Callable[[jax.Array, jax.Array, dict[str, jax.Array]], tuple[jax.Array, jax.Array]]
"""From states, products of the gate (B, S, E) and its biases to the next states, and keep."""


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
    update: Update,
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
    residuals = ("GBSD", "GBSE", "GBXSA", "BGSA", "BGSA", "GBYSA")

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
        return (states, saved[3], saved[4], keep_G), (parameters, tokens, saved)

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
        states_GBSD, h_GBYSA = saved[0], saved[5]
        x_GBSD = _normed(states_GBSD, *flat(parameters)[:2])
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


def _normed(states_BSD, scale_D, ids_SD):
    return rms_normed(states_BSD, scale_D).astype(ids_SD.dtype) + ids_SD


def _sum_over_heads(heads, x):
    axis = heads.mesh_axes[1]
    return jax.lax.psum(x, axis) if axis else x


def _store(stacked, x, g):
    return jax.lax.dynamic_update_index_in_dim(stacked, x, g, 0)


def _empty(sizes, x):
    """Returns memory for arrays like x of all blocks: written before it is read."""
    return jax.lax.empty((*sizes, *x.shape), x.dtype)


def _forward(heads, update, names, scale_D, ids_SD, matrix, self_H, cross_H, gate, *rest):
    biases = dict(zip(names, rest))
    states_BSD, *tokens = rest[len(names) :]
    (B, T, A), W, S = tokens[0].shape, tokens[2].shape[1], states_BSD.shape[1]
    G, dtype = T // W, tokens[0].dtype
    scales = [lane_scale(heads, scale_H, dtype) for scale_H in (self_H, cross_H)]

    def step(carry, g):
        states_BSD, states_GBSD, products_GBSE, *buffers = carry
        x_BSD = _normed(states_BSD, scale_D, ids_SD)
        buffers = _forward_call(heads, g, x_BSD, matrix, *scales, *tokens, *buffers)
        h_BYSA = jax.lax.dynamic_index_in_dim(buffers[3], g, 0, keepdims=False)
        products_BSE = _sum_over_heads(heads, jnp.einsum("BYSA,YAE->BSE", h_BYSA, gate))
        after_BSD, keep = update(states_BSD, products_BSE, biases)
        saved = _store(states_GBSD, states_BSD, g), _store(products_GBSE, products_BSE, g)
        return (after_BSD, *saved, *buffers), jnp.mean(keep)

    shapes = (G, B, S, gate.shape[2]), (G, B, 4, S, A), (B, G, S, A), (B, G, S, A), (G, B, 2, S, A)
    buffers = [jax.lax.empty(shape, dtype) for shape in shapes]
    carry = states_BSD, _empty((G,), states_BSD), *buffers
    (states_BSD, *saved), keep_G = jax.lax.scan(step, carry, jnp.arange(G))
    (keep_G,) = summed_over_batch(heads, keep_G)
    if heads.mesh_axes[0]:
        keep_G = keep_G / jax.lax.axis_size(heads.mesh_axes[0])
    return states_BSD, keep_G, *saved


class _Sums(NamedTuple):
    """Gradients of parameters, added up over blocks; scales of both attentions by lane."""

    scale_D: jax.Array
    ids_SD: jax.Array
    lanes_BPYL: jax.Array
    biases: dict[str, jax.Array]


def _backward(heads, update, names, scale_D, ids_SD, matrix, self_H, cross_H, gate, *rest):
    biases, rest = dict(zip(names, rest)), rest[len(names) :]
    tokens, (states_GBSD, products_GBSE, *saved), gradients = rest[:4], rest[4:10], rest[10:]
    dstates_BSD, *dkeys_values = gradients
    dtype = tokens[0].dtype
    kind = upcast(dtype)
    scales = [lane_scale(heads, scale_H, dtype) for scale_H in (self_H, cross_H)]

    def normed(states_BSD, scale_D):
        return _normed(states_BSD, scale_D, ids_SD)

    def step(carry, inputs):
        dstates_BSD, sums, dproducts_GBSE, *written = carry
        g, states_BSD, products_BSE = inputs
        back = jax.vjp(lambda *x: update(*x)[0], states_BSD, products_BSE, biases)[1]
        dstates_BSD, dproducts_BSE, dbiases = back(dstates_BSD)
        dh_BYSA = jnp.einsum("BSE,YAE->BYSA", dproducts_BSE, gate)
        inputs = *scales, *tokens, *saved, dh_BYSA, *dkeys_values, *written
        *written, dlanes = _backward_call(heads, g, *inputs)
        dheads_BXSA = jax.lax.dynamic_index_in_dim(written[2], g, 0, keepdims=False)
        dx_BSD = _sum_over_heads(heads, jnp.einsum("BXSA,XDA->BSD", dheads_BXSA, matrix))
        back = jax.vjp(normed, states_BSD, scale_D)[1]
        added_BSD, dscale_D = back(dx_BSD)
        added = _Sums(dscale_D, jnp.sum(dx_BSD.astype(kind), axis=0), dlanes, dbiases)
        sums = jax.tree.map(jnp.add, sums, added)
        dproducts_GBSE = _store(dproducts_GBSE, dproducts_BSE, g)
        return (dstates_BSD + added_BSD, sums, dproducts_GBSE, *written), None

    pending = [jnp.zeros(x.shape, kind) for x in tokens[2:]]
    buffers = [jax.lax.empty(x.shape, dtype) for x in (saved[0], *tokens[:2])]
    parts = heads.num_heads // heads.per_step
    lanes_BPYL = jnp.zeros((len(dstates_BSD), parts, 2, heads.lanes), kind)
    zeros = jax.tree.map(jnp.zeros_like, (scale_D, ids_SD.astype(kind), lanes_BPYL, biases))
    carry = dstates_BSD, _Sums(*zeros), _empty((), products_GBSE), *pending, *buffers
    by_block = jnp.arange(len(states_GBSD)), states_GBSD, products_GBSE
    carry, _ = jax.lax.scan(step, carry, by_block, reverse=True)
    dstates_BSD, sums, dproducts_GBSE, *pending_and_buffers = carry
    dcached, (dheads_GBXSA, *dtokens) = pending_and_buffers[:2], pending_and_buffers[2:]
    dcached = [x.astype(dtype) for x in dcached]
    lanes_YPL = jnp.swapaxes(sums.lanes_BPYL.sum(axis=0), 0, 1)
    dscales_YH = lanes_YPL.reshape(2, heads.num_heads, -1).sum(axis=-1) * heads.factor
    dself_H, dcross_H = dscales_YH[0] * jnp.sign(self_H), dscales_YH[1] * jnp.sign(cross_H)
    summed = sums.scale_D, sums.ids_SD, dself_H, dcross_H, *sums.biases.values()
    summed = summed_over_batch(heads, *summed)
    return dstates_BSD, *dtokens, *dcached, dheads_GBXSA, dproducts_GBSE, *summed


# Calls of the kernels; the number of the block is in scalar memory before the blocks are chosen.


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
    dh, dkeys, dvalues, *pending_and_buffers = rest
    inputs = [self_scale, cross_scale, k, v, k, v, cached_k, cached_v, raw, keys, values, h]
    inputs += [dh, dkeys, dvalues, *pending_and_buffers]
    specs = ["scale", "scale", *_TOKEN_SPECS, "heads", "states", "states", "h"]
    specs += ["dh", "states", "states", "cached", "cached", *["unused"] * 3]
    B, W, S, L = len(k), cached_k.shape[1], keys.shape[2], heads.lanes
    kind = upcast(k.dtype)
    shapes = [2 * W, 2 * W, S, S]
    scratch = [pltpu.VMEM((2 * W, L), k.dtype)] * 2
    scratch += [pltpu.VMEM((size, L), kind) for size in shapes]
    outputs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in pending_and_buffers]
    parts = heads.num_heads // heads.per_step
    outputs.append(jax.ShapeDtypeStruct((B, parts, 2, L), kind))
    out_specs = ["cached", "cached", "heads", "tokens", "tokens", "dscales"]
    aliases = {len(inputs) - 5 + i: i for i in range(5)}
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
        raw[0, 0, i] = dot(x[0], matrix[i], (1, 0)).astype(raw.dtype)
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

    _for_each_tile(x.shape[1], tile)


def _backward_kernel(heads, g, self_scale, cross_scale, *refs):
    tokens, (raw, keys, values, h, dh, dk, dv, pending_k, pending_v) = refs[:6], refs[6:15]
    new_pending_k, new_pending_v, draw, dk_tokens, dv_tokens, dscales = refs[18:24]
    token_keys, token_values, dtoken_keys, dtoken_values, dkeys, dvalues = refs[24:]
    W = tokens[0].shape[1]
    _load_tokens(heads, g, tokens, token_keys, token_values)
    for sums, start in ((dtoken_keys, pending_k[0]), (dtoken_values, pending_v[0])):
        sums[:W], sums[W:] = jnp.zeros_like(start), start
    dkeys[...], dvalues[...] = at_least_float32(dk[0, 0]), at_least_float32(dv[0, 0])
    dscales[...] = jnp.zeros_like(dscales)

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
