"""A step whose segments are divided over devices is the step of one device."""

import functools
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from architectures import ARCHITECTURES, random_model
from flax import nnx
from jax.sharding import AxisType
from marking import slow
from ragged import ragged_segments
from tiny_models import leaves_close

from brt.benchmarks import hlo
from brt.benchmarks.hlo_costs import collectives
from brt.data.streams.batch import Batch
from brt.training.over_time.ring import Vectors
from brt.training.over_time.scan import scan_is_faster
from brt.training.train_step import bind, make_loss

ROWS, SEGMENTS = 4, 8
SLOW = "rec_memorizing", "melodi", "armt", "txl_same_length", "lstm"
SCANNED = "gated_delta"
AFFINE = "gated_delta_layer", "kimi_delta", "kimi_delta_layer", "linear_attention_layer"
CASES = [
    *(("rec_two_layers", (1, 2)), (SCANNED, (2, 4)), ("lstm", (2, 4))),
    *(slow(name, (1, 2)) for name in (*SLOW, SCANNED)),
    *(slow(name, (1, devices)) for name in ("rec_two_layers", SCANNED) for devices in (4, 8)),
    slow("rec_two_layers", (2, 4)),
]
"""Fewer devices than layers, in several rounds, and more; and rows divided too."""


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
    axes = (AxisType.Auto,) * 4
    names, devices = ("data", "sequence", "fsdp", "model"), jax.devices()[: data * sequence]
    return jax.make_mesh((data, sequence, 1, 1), names, axes, devices=devices)


def step_of(name, dtype="float32", **settings):
    """The loss of a step, the parameters, and empty caches."""
    graph, state = nnx.split(random_model(name, dtype=dtype), nnx.Param)
    params, bound = nnx.to_pure_dict(state), functools.partial(bind, graph)
    return make_loss(bound, **settings), params, bound(params).init_caches(ROWS)


@functools.cache
def compiled_step(name, *shape):
    """A step with its gradients, compiled in float64, the parameters, and empty caches."""
    with jax.enable_x64(True), jax.set_mesh(mesh_of(*shape)):
        loss, params, caches = step_of(name, "float64")
        step = jax.jit(jax.value_and_grad(loss, has_aux=True))
        return step.lower(params, caches, batches(name)[0], None).compile(), params, caches


def two_steps(name, *shape):
    """Losses, gradients and caches of two steps."""
    run, params, caches = compiled_step(name, *shape)
    found = []
    with jax.set_mesh(mesh_of(*shape)):
        for batch in batches(name):
            (value, (caches, sums, _)), grads = run(params, caches, batch, None)
            # On the host: caches that are sharded already do not fit the compiled step.
            caches = jax.tree.map(np.asarray, caches)
            found.append((value, sums, grads, caches))
    return found


def exchanges(name, *shape):
    """The collectives of a compiled step, and its caches."""
    compiled, _, caches = compiled_step(name, *shape)
    return collectives(hlo.parse(compiled.as_text())), caches


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_devices_that_divide_time_compute_the_step_of_one(name, shape):
    with jax.enable_x64(True):
        leaves_close(two_steps(name, *shape), two_steps(name, 1, 1), 1e-8)


def test_counts_beside_bfloat16_reach_the_next_device_unchanged():
    layers = [
        {
            "keys": jnp.arange(6, dtype="bfloat16").reshape(2, 3),
            "count": jnp.int32([257, 2**31 - 1]),
        },
        {"state": jnp.bfloat16([0.1]), "step": jnp.int32(-3), "empty": jnp.array([True, False])},
    ]
    vectors = Vectors(layers)
    assert vectors.dtype == "bfloat16"
    for number, layer in enumerate(layers):
        jax.tree.map(
            np.testing.assert_array_equal, vectors.unpack(number, vectors.pack(layer)), layer
        )


@pytest.mark.parametrize("name", [SCANNED, *AFFINE])
def test_affine_memories_are_combined_by_a_scan(name):
    model, T = random_model(name), ARCHITECTURES[name].segment
    assert scan_is_faster(model, SEGMENTS, 4, T) and not scan_is_faster(model, SEGMENTS, 2, T)
    assert not scan_is_faster(model, SEGMENTS, 4, 3)  # a convolution needs 3 tokens before


@pytest.mark.slow
@pytest.mark.parametrize("name", AFFINE)
def test_a_scan_computes_the_step_of_one_device(name):
    with jax.enable_x64(True):
        leaves_close(two_steps(name, 2, 4), two_steps(name, 1, 1), 1e-8)


def test_no_other_memory_is_scanned():
    names = "rec_two_layers", "associative_delta", "lact", "titans", "cached_states_kimi", "lstm"
    assert not any(scan_is_faster(random_model(name), SEGMENTS, 8, 64) for name in names)


@pytest.mark.parametrize("devices", [2, slow(8)])
def test_each_layer_exchanges_once_forward_and_once_backward(devices):
    found, _ = exchanges("rec_two_layers", 1, devices)
    times = SEGMENTS // devices * max(3, devices) + min(3, devices) - 1
    assert {each.kind for each in found if each.loops} == {"collective-permute"}
    assert sum(each.times for each in found if each.kind == "collective-permute") == 2 * times


def test_a_scan_exchanges_twice_a_layer_in_each_direction():
    """Windows with the neighbour, matrices with all, and in the end each array of the caches."""
    found, caches = exchanges(SCANNED, 2, 4)
    assert not [each for each in found if each.loops]
    kinds = Counter(each.kind for each in found)
    assert kinds["collective-permute"] == 2 * len(caches) + len(jax.tree.leaves(caches))
    assert kinds["all-gather"] == kinds["reduce-scatter"] == 1  # one layer has a memory


def test_the_whole_step_trains_with_an_axis_over_time():
    entry = ARCHITECTURES["gated_delta"]
    experiment, losses = entry.experiment(ROWS, entry.divisible, SEGMENTS, rate=0.1), []
    steps = [x._replace(weights_KBT=np.float32(x.weights_KBT)) for x in batches("gated_delta")]
    for shape in ((1, 1), (2, 4)):
        mesh = mesh_of(*shape)
        with jax.set_mesh(mesh):
            step = experiment.jit_step(mesh)
            state = experiment.jit_init(mesh)(experiment.init_params())
            for batch in 2 * steps:
                state, metrics = step(state, batch)
                losses.append(float(metrics.nats / metrics.weight))
    np.testing.assert_allclose(losses[4:], losses[:4], rtol=1e-5)
    assert losses[2] < losses[0]


@pytest.mark.parametrize(
    ("name", "message"), [("rmt", "segments"), ("compressive_convolution", "added_nats")]
)
def test_what_devices_over_time_cannot_train_is_refused(name, message):
    loss, params, caches = step_of(name)
    with jax.set_mesh(mesh_of(1, 2)), pytest.raises(ValueError, match=message):
        jax.eval_shape(loss, params, caches, batches(name)[0], None)
