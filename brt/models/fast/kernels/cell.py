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
from jax.typing import DTypeLike

from brt.models.fast.kernels import cell_block
from brt.models.fast.kernels.parts import (
    Heads,
    block_misfit,
    lane_scale,
    on_each_device,
    summed_over_batch,
    upcast,
)
from brt.models.ops import rms_normed

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
        states_BSD, *buffers = carry
        x_BSD = rms_normed(states_BSD, scale_D).astype(dtype) + ids_SD
        buffers = cell_block.forward(heads, g, x_BSD, matrix, *scales, *tokens, *buffers)
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


def _backward(heads, update, names, scale_D, ids_SD, matrix, self_H, cross_H, gate, *rest):
    biases, rest = dict(zip(names, rest)), rest[len(names) :]
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
        written = cell_block.backward(heads, g, *arrays)
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
    dstates_BSD, (dscale_D, dids_SD, of_biases), lanes_BPYL, *last = carry
    dcached, (dheads_GBXSA, *dtokens) = [x.astype(dtype) for x in last[:2]], last[2:]
    lanes_YPL = jnp.swapaxes(lanes_BPYL.sum(axis=0), 0, 1)
    dscales_YH = lanes_YPL.reshape(2, heads.num_heads, -1).sum(axis=-1) * heads.factor
    dself_H, dcross_H = dscales_YH[0] * jnp.sign(self_H), dscales_YH[1] * jnp.sign(cross_H)
    dbiases = (of_biases[name] for name in names)
    summed = summed_over_batch(heads, dscale_D, dids_SD, dself_H, dcross_H, *dbiases)
    return dstates_BSD, *dtokens, *dcached, dheads_GBXSA, dproducts_GBSE, *summed
