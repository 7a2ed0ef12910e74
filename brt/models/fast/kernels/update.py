"""Norm and gate of a recurrent cell's block as Pallas TPU kernels, by rows of the states.

Plain counterparts: `rms_normed`, and a gate after its product. XLA makes separate passes for sums,
gradients of biases, and the arrays of all blocks that the backward pass needs. Here each array is
read and written once. With them and with dropout of the attention to states in its kernel, a
recurrent layer takes an estimated 4.72 M cycles of a TPU v4, not 5.20 M.

Axes as in `cell`, and I tiles of states    N products of the gate    Z biases of the gate
"""

import functools
import inspect
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from brt.models.fast.kernels.parts import Heads, dot, interpreted, tile_size, upcast
from brt.models.ops import rms_normed

_rms_normed = inspect.unwrap(rms_normed)
"""Without `jax.checkpoint`, which no kernel can contain."""
PARALLEL = pltpu.CompilerParams(dimension_semantics=("parallel", "parallel"))

MOST = 8 * 2**20
"""Bytes of matrices that fit into 16 MiB of VMEM with the rest, for the norm."""
MOST_OF_GATE = 4 * 2**20

Biases = dict[str, jax.Array]
Update = Callable[[jax.Array, jax.Array, Biases], tuple[jax.Array, jax.Array]]
"""Maps states, the gate's products (..., E), and its biases to the next states and keep,
elementwise."""


def sum_per_tile(states_BSD: jax.Array, rows: int) -> jax.Array:
    """Returns zeros to add sums over states to, (B, I, rows, D)."""
    B, S, D = states_BSD.shape
    return jnp.zeros((B, S // tile_size(S), rows, D), upcast(states_BSD.dtype))


def normed(
    heads: Heads,
    g: jax.Array,
    states_BSD: jax.Array,
    scale_D: jax.Array,
    ids_SD: jax.Array,
    states_GBSD: jax.Array,
    x_GBSD: jax.Array,
) -> Sequence[jax.Array]:
    """Stores the states of block g, and their norms with ids, in the two last arrays."""
    inputs = (states_BSD, "states"), (scale_D[None], "shared"), (ids_SD, "ids")
    stored = (states_GBSD, "block"), (x_GBSD, "block")
    return _call(heads, _normed, g, inputs, stored, (), "cell_norm_forward")


def _normed(states, scale, ids, kept, x):
    kept[0, 0] = states[0]
    x[0, 0] = _rms_normed(states[0], scale[0]).astype(x.dtype) + ids[...]


def norm_gradients(
    heads: Heads,
    g: jax.Array,
    dx: Sequence[jax.Array],
    states_GBSD: jax.Array,
    scale_D: jax.Array,
    dstates_BSD: jax.Array,
    dx_GBSD: jax.Array,
    dscale_BI1D: jax.Array,
) -> Sequence[jax.Array]:
    """Adds the gradients of block g's states and scale, and stores that of the result.

    dx: the gradient of the result, (B, S, D), or the two factors whose product it is: of all heads,
    (G, B, X, S, A), and the matrices (X, D, A).
    """
    kinds = ("states",) if len(dx) == 1 else ("block of heads", "matrices")
    inputs = *zip(dx, kinds), (states_GBSD, "block"), (scale_D[None], "shared")
    stored, sums = ((dx_GBSD, "block"),), ((dstates_BSD, "states"), (dscale_BI1D, "tile"))
    kernel = functools.partial(_norm_gradients, len(dx))
    return _call(heads, kernel, g, inputs, stored, sums, "cell_norm_backward")


def _norm_gradients(number, *refs):
    dx, others = refs[:number], refs[number:]
    states, scale, dstates, dscale, kept, new_dstates, new_dscale = others
    if number == 1:
        gradient = dx[0][0]
    else:
        heads, matrices = dx
        products = (dot(heads[0, 0, x], matrices[x], (1, 1)) for x in range(len(matrices)))
        gradient = functools.reduce(jnp.add, products).astype(kept.dtype)
    _, back = jax.vjp(_rms_normed, states[0, 0], scale[0])
    added, added_scale = back(gradient.astype(states.dtype))
    kept[0, 0], new_dstates[0] = gradient, dstates[0] + added
    new_dscale[0, 0] = dscale[0, 0] + added_scale[None]


def updated(
    heads: Heads,
    update: Update,
    g: jax.Array,
    states_BSD: jax.Array,
    products_BSE: jax.Array,
    biases: Biases,
    products_GBSE: jax.Array,
    keep_GBI1D: jax.Array,
) -> Sequence[jax.Array]:
    """Stores the products of block g and the mean of keep in each tile, and updates the states."""
    inputs = (products_BSE, "states"), *_shared(biases)
    stored = (products_GBSE, "block"), (keep_GBI1D, "tile of a block")
    kernel = functools.partial(_updated, update, tuple(biases))
    changed = ((states_BSD, "states"),)
    return _call(heads, kernel, g, inputs, stored, changed, "cell_gate_forward")


def _updated(update, names, products, *refs):
    *biases, states, kept_products, kept, after = refs
    values = {name: bias[...] for name, bias in zip(names, biases)}
    after[0], keep = update(states[0], products[0], values)
    kept_products[0, 0] = products[0]
    kept[0, 0, 0] = jnp.mean(keep, axis=0, keepdims=True)


def update_gradients(
    heads: Heads,
    update: Update,
    g: jax.Array,
    dafter_BSD: jax.Array,
    states_GBSD: jax.Array,
    products_GBSE: jax.Array,
    biases: Biases,
    dproducts_GBSE: jax.Array,
    dbiases_BIZD: jax.Array,
    matrices_YAE: jax.Array,
    dh_BYSA: jax.Array | None,
) -> Sequence[jax.Array]:
    """Stores the gradient of the products of block g and adds those of biases.

    dafter_BSD: of the states that `updated` returned, changed to that of the states before.
    dh_BYSA: overwritten with the gradient of the attentions, (B, Y, S, A), or None.
    """
    inputs = [(states_GBSD, "block"), (products_GBSE, "block"), *_shared(biases)]
    stored, changed = [(dproducts_GBSE, "block")], ((dbiases_BIZD, "tile"), (dafter_BSD, "states"))
    if dh_BYSA is not None:
        inputs.append((matrices_YAE, "matrices"))
        stored.append((dh_BYSA, "attentions"))
    kernel = functools.partial(_update_gradients, update, tuple(biases), dh_BYSA is not None)
    return _call(heads, kernel, g, inputs, stored, changed, "cell_gate_backward")


def _update_gradients(update, names, has_product, states, products, *refs):
    biases, refs = refs[: len(names)], refs[len(names) :]
    gate, refs = refs[:has_product], refs[has_product:]
    dbiases, dafter, dproducts, *dh, new_dbiases, dstates = refs
    values = {name: bias[...] for name, bias in zip(names, biases)}
    arrays = states[0, 0], products[0, 0], values
    back = jax.vjp(lambda *arrays: update(*arrays)[0], *arrays)[1]
    dstates[0], gradient, added = back(dafter[0])
    dproducts[0, 0] = gradient
    for z, name in enumerate(names):
        new_dbiases[0, 0, z : z + 1] = dbiases[0, 0, z : z + 1] + added[name]
    for matrices, written in zip(gate, dh):
        for y in range(len(matrices)):
            written[0, y] = dot(gradient, matrices[y], (1, 1)).astype(written.dtype)


def _shared(biases):
    return ((bias_D[None], "shared") for bias_D in biases.values())


def _spec(name, shape, R):
    *_, rows, D = shape
    return {
        "states": lambda: pl.BlockSpec((1, R, D), lambda b, i, g: (b, i, 0)),
        "block": lambda: pl.BlockSpec((1, 1, R, D), lambda b, i, g: (g[0], b, i, 0)),
        "block of heads": lambda: pl.BlockSpec(
            (1, 1, shape[2], R, D), lambda b, i, g: (g[0], b, 0, i, 0)
        ),
        "attentions": lambda: pl.BlockSpec((1, shape[1], R, D), lambda b, i, g: (b, 0, i, 0)),
        "matrices": lambda: pl.BlockSpec(
            shape, lambda b, i, g: (0, 0, 0), pipeline_mode=pl.Buffered(1)
        ),
        "ids": lambda: pl.BlockSpec((R, D), lambda b, i, g: (i, 0)),
        "shared": lambda: pl.BlockSpec((1, D), lambda b, i, g: (0, 0)),
        "tile": lambda: pl.BlockSpec((1, 1, rows, D), lambda b, i, g: (b, i, 0, 0)),
        "tile of a block": lambda: pl.BlockSpec(
            (1, 1, 1, rows, D), lambda b, i, g: (g[0], b, i, 0, 0)
        ),
    }[name]()


def _call(heads, kernel, g, inputs, stored, changed, name):
    """Calls a kernel for each tile of the states of block g; returns all `stored` and `changed`.

    stored: arrays that are written without reading them. The kernel gets inputs, `changed`, and
    then its outputs.
    """
    (B, S) = next(x.shape[:2] for x, blocks in (*inputs, *changed) if blocks == "states")
    R, first = tile_size(S), 1 + len(inputs)
    skipped = slice(first, first + len(stored))

    def call(*refs):
        kernel(*refs[1 : skipped.start], *refs[skipped.stop :])

    def specs(arrays):
        return [_spec(blocks, x.shape, R) for x, blocks in arrays]

    unread = [pl.BlockSpec(memory_space=pl.ANY)] * len(stored)
    written = *stored, *changed
    return pl.pallas_call(
        call,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(B, S // R),
            in_specs=[*specs(inputs), *unread, *specs(changed)],
            out_specs=specs(written),
        ),
        out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x, _ in written],
        input_output_aliases={first + i: i for i in range(len(written))},
        compiler_params=PARALLEL,
        interpret=interpreted(heads),
        name=name,
    )(g.reshape(1).astype(jnp.int32), *(x for x, _ in (*inputs, *written)))
