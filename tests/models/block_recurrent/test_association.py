"""ARMT's matrices against a recording of the released code.

`recordings/armt_layers.npz` has the outputs, in float64 with torch 2.13, of two
`AssociativeLayerWrapper` of modeling_amt/language_modeling.py (github.com/RodkinIvan/
associative-recurrent-memory-transformer, commit 042b2e4) over three segments of five tokens and
three memory tokens. A wrapped layer is tanh(x @ w).
"""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tiny_models import quick_jit

from brt.models.memory_tokens.associative import Association

NAMES = {
    "queries_DY": "W_mq.weight",
    "keys_DY": "W_mk.weight",
    "values_DD": "W_mv.weight",
    "rate_D": "W_mb.weight",
    "rate_bias_N": "W_mb.bias",
}
TOLERANCE = 1e-4
"""The released code subtracts its 1e-5 in g too, but not in the first segment."""


@pytest.fixture(scope="module")
def recording():
    with np.load(Path(__file__).parents[1] / "recordings" / "armt_layers.npz") as archive:
        return dict(archive)


def loaded(recording, layer):
    D, Y = recording["params/W_mq.weight"][layer].T.shape
    association = Association(nnx.Rngs(0), D, Y)
    for name, theirs in NAMES.items():
        ours = getattr(association, name)
        ours[...] = as_ours(recording[f"params/{theirs}"][layer], ours.shape)
    return association


def as_ours(weights, shape):
    return jnp.asarray(weights.T.reshape(shape))


def run(params, layer_weights, graph, recording):
    """Returns the loss; and outputs, matrices and sums after every segment."""
    associations = nnx.merge(graph, params)
    S = 3
    caches = [each.init_cache(recording["inputs"].shape[1], jnp.float32) for each in associations]
    loss, outputs, matrices, sums = jnp.zeros(()), [], [], []
    for n, segment in enumerate(recording["inputs"]):
        x_BXD = jnp.asarray(segment, jnp.float32)
        for i, association in enumerate(associations):
            read = association.read(caches[i], x_BXD.dtype)
            input_BXD, _ = association.add(read, x_BXD)
            x_BXD = jnp.tanh(input_BXD @ layer_weights[i])
            caches[i], _ = association.update(caches[i], x_BXD[:, -S:])
        loss += (n + 1) * jnp.square(x_BXD).sum()
        outputs.append(x_BXD)
        matrices.append([cache.matrix_BLD for cache in caches])
        sums.append([cache.sum_BL for cache in caches])
    return loss, (jnp.asarray(outputs), jnp.asarray(matrices), jnp.asarray(sums))


def test_outputs_and_gradients_are_those_of_the_released_code(recording):
    layers = range(len(recording["params/layer.w"]))
    graph, params = nnx.split(nnx.List(loaded(recording, layer) for layer in layers))
    weights = jnp.asarray(recording["params/layer.w"], jnp.float32)
    both = jax.value_and_grad(run, argnums=(0, 1), has_aux=True)
    both = quick_jit(functools.partial(both, graph=graph, recording=recording))
    with jax.default_matmul_precision("highest"):
        (loss, found), (grads, weight_grads) = both(params, weights)

    expected = [recording[name] for name in ("outputs", "matrices", "sums")]
    for ours, theirs in zip((loss, *found), (recording["loss"], *expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE)
    assert_gradient(weight_grads, recording["grads/layer.w"])
    for layer in layers:
        for name, theirs in NAMES.items():
            ours = grads[layer][name][...]
            assert_gradient(ours, as_ours(recording[f"grads/{theirs}"][layer], ours.shape))


def assert_gradient(ours, theirs):
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=TOLERANCE * np.abs(theirs).max())
