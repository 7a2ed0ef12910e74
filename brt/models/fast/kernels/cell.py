"""A recurrent cell's loop over blocks with one Pallas TPU kernel an iteration, for all heads.

Plain counterpart: `RecurrentCell.step` in `brt.models.ops.scan_blocks`. The kernel projects the
states, normalises, and attends to the states and to two blocks of tokens. It reads a segment's
tokens without copying pairs of blocks or heads, and writes arrays of all blocks for the backward
pass. Norm and gate have separate kernels (`update`); the product before the gate is XLA's.

Axes as in `parts`, and G blocks    S states    X matrices of the
states: keys, values, queries for the states and for the tokens    Y attention to states, to tokens
E = N * D, features of the gate's N products
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from brt.models.fast.kernels import cell_block
from brt.models.fast.kernels import update as update_kernel
from brt.models.fast.kernels.parts import (
    Heads,
    block_misfit,
    lane_scale,
    on_each_device,
    summed_over_batch,
    upcast,
)

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
    biases = tuple(sorted(parameters.biases))
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
        return (*arrays[:-1], *(parameters.biases[name] for name in biases))

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
    """Returns `lane_scale` of each; the barrier keeps XLA from computing them in the loop."""
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
        buffers = cell_block.forward(heads, g, x, matrix, *scales, *tokens, *buffers)
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
        written = cell_block.backward(heads, g, *inputs)
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
