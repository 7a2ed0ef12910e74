"""A form of an operation against another: outputs, gradients, and dropped weights.

The plain forms of the attention kernels are `brt.models.ops`, with the factors that a kernel draws.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from tiny_models import quick_jit

from brt.models import ops
from brt.models.fast import kernel_forms
from brt.models.fast.kernels import gpu_tiles
from brt.models.fast.kernels.parts import Dropout, Heads
from brt.models.sizes import tile_size
from brt.training.sharding import make_mesh, shardings


def outputs_and_gradients(form, *args):
    """The outputs and the gradients of a random weighting of them by every argument."""

    @quick_jit
    def run(*args):
        rng = np.random.default_rng(1)
        outputs, backward = jax.vjp(lambda *args: jax.tree.leaves(form(*args)), *args)
        weights = [jnp.asarray(rng.standard_normal(y.shape), y.dtype) for y in outputs]
        return *outputs, *jax.tree.leaves(backward(weights))

    with jax.default_matmul_precision("highest"):
        return run(*args)


def relative_errors(found, expected):
    """The largest error of each array, relative to its largest entry; unused arguments have 0."""
    return [
        float(jnp.max(jnp.abs(a.astype("float32") - b)) / jnp.maximum(jnp.max(jnp.abs(b)), 1e-30))
        for a, b in zip(found, expected, strict=True)
    ]


def check_dropped(factors_of, rate=0.1):
    """Asserts that weights are dropped at the rate, and each independently of all others.

    factors_of: from a seed and a rate to factors of weights, (H, Q, K).
    """

    def dropped(seed, rate):
        factors = factors_of(seed, rate)
        np.testing.assert_allclose(np.unique(factors), [0, 1 / (1 - rate)], rtol=1e-6)
        return np.asarray(factors == 0)

    drawn = dropped(0, rate)
    (_, Q, K), spread = drawn.shape, (rate * (1 - rate)) ** 0.5
    most = 5 / (Q * K) ** 0.5  # standard deviations of the mean of a head
    assert np.all(np.abs(np.mean(drawn, axis=(1, 2)) - rate) < most * spread)
    for axis in (1, 2):
        means = np.mean(drawn, axis=axis)
        ratio = np.std(means) / spread * drawn.shape[axis] ** 0.5
        assert abs(ratio - 1) < 5 / (2 * means.size) ** 0.5
    assert np.array_equal(drawn, dropped(0, rate))
    assert abs(np.mean(dropped(2, 0.5)) - 0.5) < most * 0.5
    # Neither heads nor seeds nor neighbours have masks in common.
    masks = [*drawn, *dropped(1, rate)]
    masks += [np.roll(drawn[0], n, axis=1) for n in (1, 2, 8, 16, K // 2)]
    masks += [np.roll(drawn[0], n, axis=0) for n in (1, 2, 128)]
    overlaps = np.corrcoef(np.stack(masks).reshape(len(masks), -1)) - np.eye(len(masks))
    assert np.max(np.abs(overlaps)) < most


def drawn_by_tpu(keep, shape, blocks=1, by_keys=False):
    """The factors of the weights that a TPU kernel draws, (H, N, Q, X), for N tiles of queries.

    shape: of a block of a tile's weights. by_keys: the kernel's blocks have keys first.
    """
    dropout = Dropout(Heads(1, 128, interpret=True), keep)

    def of_tile(head, tile):
        drawn = dropout.of_tile(dropout.inputs, head, tile)
        factors = [drawn(*shape)(jnp.full(shape, dropout.factor)) for _ in range(blocks)]
        return jnp.concatenate([x.T if by_keys else x for x in factors], axis=1)

    H, N, _ = keep.seeds_HN2.shape
    of_head = jax.vmap(of_tile, (None, 0))
    with jax.enable_x64(False):
        return jax.vmap(of_head, (0, None))(jnp.arange(H), jnp.arange(N))


def drawn_by_gpu(dropout, window, states=0):
    """The factors of the weights that a GPU kernel draws, (H, W, 2W or S)."""
    tiles = gpu_tiles.Tiles(window, 0, 0, 0, True, dropout.rate, states)
    key = gpu_tiles.Range(0, jnp.arange(states or 2 * window))
    draw = functools.partial(
        gpu_tiles.kept_weights, tiles, query=jnp.arange(window)[:, None], key=key
    )
    return jax.vmap(draw)(dropout.seeds_HN2[:, 0]) * tiles.kept_factor


def plain_attend_to_window(heads, q_BTHK, k, v, cached_k, cached_v, scale, bias_HW, keep=None):
    """`attend_to_window` of the TPU kernel by `ops.attention`."""
    W = cached_k.shape[1]
    keep = keep and window_drawn_by_tpu(keep, W)
    k = ops.unit_heads(k) if heads.qk_norm else k
    blocks = ops.in_blocks(queries_of(heads, q_BTHK), W)
    pairs = ops.block_pairs(cached_k, k), ops.block_pairs(cached_v, v)
    table_HWJ = ops.window_table(bias_HW)
    return ops.attention(blocks, *pairs, scale, table_HWJ, keep).reshape(q_BTHK.shape)


def window_drawn_by_tpu(keep, window):
    """(H, W, 2W) from what each of N tiles of Q queries has of the W + Q keys that it sees."""
    Q = tile_size(window)
    N = window // Q
    drawn_HNQX = drawn_by_tpu(keep, (Q, Q), N + 1, by_keys=True)
    margins = (((0, 0), (0, 0), (n * Q, (N - 1 - n) * Q)) for n in range(N))
    tiles = [jnp.pad(drawn_HNQX[:, n], margin) for n, margin in enumerate(margins)]
    return jnp.concatenate(tiles, axis=1)


def states_drawn_by_tpu(keep, window, states):
    return drawn_by_tpu(keep, (tile_size(window), states)).reshape(-1, window, states)


def plain_attend_to_states(
    heads, q_BGWHK, k_BGSHK, v_BGSHK, scale, keep=None, drawn=states_drawn_by_tpu
):
    """`attend_to_states` of a kernel by `ops.attention`, with the factors that it draws."""
    keep = keep and drawn(keep, q_BGWHK.shape[2], k_BGSHK.shape[2])
    return ops.attention(queries_of(heads, q_BGWHK), k_BGSHK, v_BGSHK, scale, None, keep)


def tables_drawn_by_tpu(bias_HW, key, rate, table=ops.window_table):
    """`ops.window_tables` with the factors that the TPU kernel draws."""
    keep = kernel_forms.window_tables(bias_HW, key, rate).keep_HWJ
    keep_HWJ = keep and window_drawn_by_tpu(keep, bias_HW.shape[1])
    return ops.WindowTables(table(bias_HW), keep_HWJ)


def dropout_drawn_by_tpu(key, rate, sizes, dtype):
    """`ops.states_dropout` with the factors that the TPU kernel draws."""
    keep = kernel_forms.states_dropout(key, rate, sizes, dtype)
    return keep and states_drawn_by_tpu(keep, *sizes[1:])


def queries_of(heads, q_BTHK):
    return ops.unit_heads(q_BTHK) if heads.qk_norm else ops.scaled_down_heads(q_BTHK)


def on_mesh(shape, computed, params):
    """The results of a function of parameters, which a mesh divides; on one device: None."""
    if shape is None:
        return computed(params)
    mesh = make_mesh(shape, devices=jax.devices()[: np.prod(shape)])
    with jax.set_mesh(mesh):
        return computed(jax.device_put(params, shardings(params, mesh)))


def two_segments(graph, params, tokens_SBT):
    """Of two segments with their caches, dropout on: outputs, caches, gradients."""
    segments, rows, tokens = tokens_SBT.shape

    def loss(params):
        model = nnx.merge(graph, params)

        def run(caches, inputs):
            key, tokens_BT, weights_BTD = inputs
            x_BTD, caches, _ = model.stack(model.embed(tokens_BT), caches, key)
            return caches, (x_BTD, jnp.sum(x_BTD * weights_BTD))

        keys = jax.random.split(jax.random.key(0), segments)
        sizes = segments, rows, tokens, model.width
        inputs = keys, tokens_SBT, np.random.default_rng(1).normal(size=sizes)
        # A scan: JAX differentiates the passes of a kernel after `stack` has returned.
        caches, (x_SBTD, sums) = jax.lax.scan(run, model.init_caches(rows), inputs)
        return jnp.sum(sums), (x_SBTD, caches)

    return jax.value_and_grad(loss, has_aux=True)(params)


def of_two_segments(model, tokens):
    """A function from parameters to `two_segments` of 4 batch elements, and the model's own."""
    tokens_SBT = np.random.default_rng(0).integers(0, 17, (2, 4, tokens)).astype(np.int32)
    graph, params = nnx.split(model, nnx.Param)

    def computed(params):
        return quick_jit(lambda params: two_segments(graph, params, tokens_SBT))(params)

    return computed, params
