"""Segments divided over devices, for memories whose states are combined by an associative scan.

Device d of N has the segments d R, ..., d R + R - 1 of a step, and all devices run the same layer
at once. A layer whose memory is `affine` changes its matrix S in R segments to A S + b, whatever S
was before: each device computes its A and b, and `jax.lax.associative_scan` over those of all
devices gives each the matrix before its segments. What else a cache holds (windows, inputs of
convolutions) depends on the last tokens alone, and comes from the device before.

A layer's keys, values and memory are computed a second time, about a quarter of its operations; the
backward pass computes each layer again. No device is idle. `ring.py` is the other schedule, for all
memories.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from brt.models.caches import select_rows
from brt.models.diagonal import layerwise_of
from brt.models.model import Model

AGAIN = 0.25
"""Estimated share of a layer's operations that this schedule does a second time."""


def scan_is_faster(model: Model, segments: int, devices: int) -> bool:
    """Whether all states can be scanned, and that costs less than the idle times of the ring."""
    layers = layerwise_of(model).layers
    memories = [memory for layer in layers for memory in getattr(layer, "memories", ())]
    known = all(hasattr(layer, "memories") for layer in layers)
    affine = known and all(memory.affine for memory in memories)
    return affine and devices - 1 > AGAIN * len(layers) * segments / devices


def run_scan(
    model: Model, x_RBTD: jax.Array, caches: tuple, starts_RB: jax.Array, axis: str
) -> tuple[jax.Array, tuple]:
    """Runs the segments of one device of the axis; the others run theirs at the same time.

    Arguments and results are those of `run_ring`, but the last device has the caches after the
    last segment.
    """
    layerwise = layerwise_of(model)
    empty = model.init_caches(x_RBTD.shape[1])
    inputs = jax.vmap(layerwise.enter)(x_RBTD)
    after = []
    for layer, cache, fresh in zip(layerwise.layers, caches, empty, strict=True):
        graph, params = nnx.split(layer)

        def run(params, inputs, cache, fresh, graph=graph):
            def segments(cache):
                def segment(cache, xs):
                    x, starts_B = xs
                    cache = select_rows(starts_B, fresh, cache)
                    y, cache = layerwise.run(nnx.merge(graph, params), x, cache)
                    return cache, y

                return jax.lax.scan(segment, cache, (inputs, starts_RB))

            return segments(before(segments, cache, fresh, axis))

        cache, inputs = jax.checkpoint(run)(params, inputs, cache, fresh)
        after.append(cache)
    return jax.vmap(layerwise.leave)(inputs), tuple(after)


def before(segments: Callable, first: Any, empty: Any, axis: str) -> Any:
    """Returns the cache before this device's segments.

    Args:
        segments: from the cache before them to the cache after them, and their outputs.
        first: the cache before the segments of device 0.
        empty: any cache of the same shapes.
    """
    N, device = jax.lax.axis_size(axis), jax.lax.axis_index(axis)
    others, _ = segments(empty)  # whose matrices are of no use
    others = jax.lax.ppermute(others, axis, [(i, (i + 1) % N) for i in range(N)])
    others = jax.tree.map(lambda x, y: jnp.where(device == 0, x, y), first, others)

    def change(matrices):
        return matrices_of(segments(with_matrices(others, matrices))[0])

    zeros = [jnp.zeros_like(x) for x in matrices_of(first)]
    units = [jnp.broadcast_to(jnp.eye(x.shape[-1], dtype=x.dtype), x.shape) for x in zeros]
    # A I + b and b; kernels of the rule have no forward derivative that would give A alone.
    own = [(b, both - b) for b, both in zip(change(zeros), change(units), strict=True)]
    found = []
    for S_BHKK, parts in zip(matrices_of(first), jax.lax.all_gather(own, axis), strict=True):
        b_NBHKK, A_NBHKK = jax.lax.associative_scan(combined, parts)
        last = jnp.maximum(device - 1, 0)
        found.append(jnp.where(device == 0, S_BHKK, A_NBHKK[last] @ S_BHKK + b_NBHKK[last]))
    return with_matrices(others, found)


def combined(earlier: tuple, later: tuple) -> tuple[jax.Array, jax.Array]:
    """Returns b and A of two changes S -> A S + b, one after the other."""
    (b, A), (later_b, later_A) = earlier, later
    return later_A @ b + later_b, later_A @ A


def matrices_of(cache: Any) -> list[jax.Array]:
    leaves = jax.tree_util.tree_leaves_with_path(cache)
    return [x for path, x in leaves if getattr(path[-1], "name", "") == "matrix_BHKK"]


def with_matrices(cache: Any, matrices: list[jax.Array]) -> Any:
    """Returns a cache with other matrices, in the order of `matrices_of`."""
    given = iter(matrices)

    def chosen(path, x):
        return next(given) if getattr(path[-1], "name", "") == "matrix_BHKK" else x

    return jax.tree_util.tree_map_with_path(chosen, cache)
