"""The ring: layer l of segment s runs at time s + l, on device s mod N (`loss.py`).

At each time a device runs one layer of one segment and sends the layer's cache to the device of the
next segment, as in the diagonal schedule (`brt/models/diagonal.py`). K segments and n >= N layers
take n K / N + N - 1 times, in N - 1 of which a device is idle. The backward pass computes each
layer of a segment again.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.flatten_util import ravel_pytree
from jax.typing import DTypeLike

from brt.models.caches import select_rows
from brt.models.diagonal import groups_of, layerwise_of, result_shapes
from brt.models.mesh_axes import OVER_TIME
from brt.models.model import Model
from brt.training.over_time.order import in_order


def run_ring(
    model: Model, x_RBTD: jax.Array, caches: tuple, starts_RB: jax.Array, devices: int
) -> tuple[jax.Array, tuple]:
    """Runs the segments of one device of the axis; the others run theirs at the same time.

    Args:
        x_RBTD: embedded tokens of this device's R segments.
        caches: before the first segment of the step, on all devices.
        starts_RB: bool, batch elements that start a document in a segment.
        devices: N.

    Returns:
        The outputs of `Model.stack`, (R, B, T, D), and on device 0 the caches after the last
        segment of the step.
    """
    layerwise, N = layerwise_of(model), devices
    R, n = len(x_RBTD), len(caches)
    groups = groups_of(layerwise, x_RBTD[0], caches)
    last = next(group for group in groups if n - 1 in group.indices)
    result, _ = result_shapes(layerwise, layerwise.layers[-1], (last.inputs, last.cache))
    x_of = Vectors([*(group.inputs for group in groups), result])
    cache_of = Vectors([group.cache for group in groups])
    group_n, position_n = np.zeros((2, n), int)
    for number, group in enumerate(groups):
        for position, i in enumerate(group.indices):
            group_n[i], position_n[i] = number, position
    largest = int(np.argmax([len(group.indices) for group in groups]))
    run = _switch(layerwise, groups, largest, x_of, cache_of)
    empty_nX = jnp.stack([*map(cache_of.pack, model.init_caches(x_RBTD.shape[1]))])
    due = Schedule(R, n, max(n, N)).due
    device = jax.lax.axis_index(OVER_TIME)

    def arrived(store_nX, moving_X, t):
        _, layer, sent = due(t - 1, (device - 1) % N)
        return store_nX.at[layer].set(jnp.where(sent, moving_X, store_nX[layer]))

    def step(carry, inputs):
        x, moving_X, store_nX, y_RY = carry
        t, params = inputs
        store_nX = arrived(store_nX, moving_X, t)
        r, layer, has_one = due(t, device)
        x = jnp.where(layer == 0, x_of.pack(layerwise.enter(x_RBTD[r])), x)
        number = jnp.where(has_one, jnp.array(group_n)[layer], len(groups))
        y, cache_X = run(
            number,
            *(params, jnp.array(position_n)[layer], x),
            *(store_nX[layer], empty_nX[layer], starts_RB[r]),
        )
        moving_X = jax.lax.ppermute(cache_X, OVER_TIME, [(i, (i + 1) % N) for i in range(N)])
        ends = has_one & (layer == n - 1)
        y_RY = y_RY.at[r].set(jnp.where(ends, y, y_RY[r]))
        return (y, moving_X, store_nX, y_RY), None

    # The largest group's parameters, in the order of this device's times: as inputs of the loop, so
    # that their gradients are not summed over all layers at every time.
    interval = max(n, N)
    order = (jnp.arange(interval) - device) % interval
    position_P = jnp.where(group_n == largest, position_n, 0)[jnp.minimum(order, n - 1)]
    params_P = jax.tree.map(lambda x: x[position_P], groups[largest].params)

    def one_round(carry, r):
        return jax.lax.scan(step, carry, (r * interval + jnp.arange(interval), params_P))

    x_size, cache_size = x_of.size, cache_of.size
    carry = (
        jnp.zeros(x_size, x_of.dtype),
        jnp.zeros(cache_size, cache_of.dtype),
        jnp.stack([*map(cache_of.pack, caches)]),
        jnp.zeros((R, x_size), x_of.dtype),
    )
    carry, _ = jax.lax.scan(one_round, carry, jnp.arange(R))
    rest = min(n, N) - 1
    times = R * interval + jnp.arange(rest)
    carry, _ = jax.lax.scan(step, carry, (times, jax.tree.map(lambda x: x[:rest], params_P)))
    _, moving_X, store_nX, y_RY = carry
    moving_X, y_RY = in_order(moving_X, y_RY)
    store_nX = arrived(store_nX, moving_X, R * interval + rest)
    y_RBTD = jax.vmap(lambda y: layerwise.leave(x_of.unpack(-1, y)))(y_RY)
    return y_RBTD, tuple(cache_of.unpack(group_n[i], store_nX[i]) for i in range(n))


class Schedule(NamedTuple):
    """When a device runs which layer of which of its segments.

    segments: R, of a device. layers: n. interval: times between the segments of a device.
    """

    segments: int
    layers: int
    interval: int

    def due(self, t: jax.Array, device: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Returns a device's segment and layer at time t, and whether it has one."""
        r, layer = (t - device) // self.interval, (t - device) % self.interval
        has_one = (r >= 0) & (r < self.segments) & (layer < self.layers)
        return jnp.clip(r, 0, self.segments - 1), jnp.minimum(layer, self.layers - 1), has_one


def _switch(layerwise, groups, largest, x_of, cache_of):
    """Returns a function that runs a layer of the group of a number; of `len(groups)` it is idle.

    largest: the group whose parameters it is passed.
    """

    def branch(number):
        group = groups[number]

        def run(params, position, x, cache, empty, starts_B):
            if number != largest:
                params = jax.tree.map(lambda x: x[position], group.params)
            cache = select_rows(starts_B, *(cache_of.unpack(number, y) for y in (empty, cache)))
            layer = nnx.merge(group.graph, params)
            y, cache = layerwise.run(layer, x_of.unpack(number, x), cache)
            return x_of.pack(y), cache_of.pack(cache)

        return run

    def idle(params, position, x, cache, empty, starts_B):
        return x, cache

    branches = [*map(branch, range(len(groups))), idle]
    # Otherwise the backward pass stores, at every time, copies of the parameters, and zeros for
    # the residuals of the other branches.
    return jax.checkpoint(lambda number, *arrays: jax.lax.switch(number, branches, *arrays))


class Vectors:
    """Trees of several structures as zero-padded vectors of one size, so that one exchange carries
    any layer's cache. like: their shapes.

    Integers are divided into bytes, which floats of every type hold exactly.
    """

    def __init__(self, like: list[Any]):
        self._like = like
        zeros = jax.tree.map(jnp.zeros_like, like)
        vectors = [ravel_pytree(_without_integers(tree)) for tree in zeros]
        self.size = max(vector.size for vector, _ in vectors)
        self.dtype: DTypeLike = jnp.result_type(*(vector.dtype for vector, _ in vectors))
        self._parts = [(vector.size, vector.dtype, tree) for vector, tree in vectors]

    def pack(self, tree: Any) -> jax.Array:
        vector, _ = ravel_pytree(_without_integers(tree))
        return jnp.pad(vector.astype(self.dtype), (0, self.size - vector.size))

    def unpack(self, number: int, vector: jax.Array) -> Any:
        size, dtype, tree = self._parts[number]
        return jax.tree.map(_with_integers, tree(vector[:size].astype(dtype)), self._like[number])


def _without_integers(tree):
    return jax.tree.map(
        lambda x: jax.lax.bitcast_convert_type(x, jnp.uint8) if _is_integer(x) else x, tree
    )


def _with_integers(x, like):
    return jax.lax.bitcast_convert_type(x, like.dtype) if _is_integer(like) else x


def _is_integer(x):
    return jnp.issubdtype(x.dtype, jnp.integer)
