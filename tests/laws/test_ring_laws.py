"""A step whose segments are divided over devices is the step of one device."""

import functools

import jax
import numpy as np
import pytest
from architectures import ARCHITECTURES, random_model
from flax import nnx
from jax.sharding import AxisType
from ragged import ragged_segments

from brt.data.streams.batch import Batch
from brt.training.train_step import bind, make_loss

ROWS, SEGMENTS = 4, 8
NAMES = (
    "rec_two_layers",
    "gated_delta",
    "rec_memorizing",
    "txl_same_length",
    "armt",
    "melodi",
    "lstm",
)


def batches(name):
    """Two steps, the second of which continues documents of the first."""
    entry = ARCHITECTURES[name]
    ragged = ragged_segments(entry.window, entry.segment, entry.vocabulary, ROWS, seed=5)
    tokens, starts, valid = (np.concatenate([x] * 3)[: 2 * SEGMENTS] for x in ragged)
    targets = np.roll(tokens, -1, axis=-1)
    targets = np.maximum(targets, 0)
    batch = Batch(tokens, targets, valid.astype(np.float64), starts)
    assert not starts[SEGMENTS].all()
    return [Batch(*(x[part] for x in batch)) for part in (slice(SEGMENTS), slice(SEGMENTS, None))]


def mesh_of(data, sequence):
    axes = (AxisType.Auto,) * 3
    names, devices = ("data", "sequence", "model"), jax.devices()[: data * sequence]
    return jax.make_mesh((data, sequence, 1), names, axes, devices=devices)


def two_steps(name, *shape):
    """Losses, gradients and caches of two steps."""
    graph, state = nnx.split(random_model(name, dtype="float64"), nnx.Param)
    params, bound = nnx.to_pure_dict(state), functools.partial(bind, graph)
    run = jax.jit(jax.value_and_grad(make_loss(bound), has_aux=True))
    caches, found = bound(params).init_caches(ROWS), []
    with jax.set_mesh(mesh_of(*shape)):
        for batch in batches(name):
            (value, (caches, sums, _)), grads = run(params, caches, batch, None)
            found.append((value, sums, grads, caches))
    return jax.tree.map(np.asarray, found)


def close(found, expected):
    tolerance = 1e-8 * max(1.0, np.abs(expected).max(initial=0.0))
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", NAMES)
def test_devices_that_divide_time_compute_the_step_of_one(name):
    """With fewer devices than layers, as many rounds as needed, and with more."""
    with jax.enable_x64(True):
        expected = two_steps(name, 1, 1)
        for shape in ((1, 2), (1, 4), (1, 8), (2, 4)) if name == NAMES[0] else ((1, 2),):
            jax.tree.map(close, two_steps(name, *shape), expected)
