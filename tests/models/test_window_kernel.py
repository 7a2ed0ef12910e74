"""The Pallas kernel of windowed self-attention against its plain form, in interpret mode.

With libtpu installed the kernel is compiled for slices of four kinds of TPU as well.
"""

import importlib.util
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from paths import ROOT

from brt.models.fast.window_kernel import (
    TILE,
    WindowShape,
    plain_window_attention,
    window_attention,
)
from brt.models.layers.positions_t5 import HIDDEN

NAMES = ("q", "k", "v", "cached_k", "cached_v", "scale", "bias")


def arguments(shape, batch, segment, dropout, dtype=np.float32, seed=0):
    """Random arguments; a bias differs by query, key and head, and hides what a window hides."""
    rng = np.random.default_rng(seed)
    W, H, A = shape.window, shape.num_heads, shape.num_heads * shape.head_size
    X = W + TILE

    def normal(*sizes):
        return jnp.asarray(rng.standard_normal(sizes), dtype)

    query, key = np.mgrid[:TILE, :X]
    distance = W + query - key
    visible = (distance >= 1) & (distance <= W)
    bias_HQX = np.where(visible, rng.standard_normal((H, TILE, X)), HIDDEN)
    keep_HWX = (rng.random((H, W, X)) >= dropout) / (1 - dropout) if dropout else None
    return (
        *(normal(batch, segment, A) for _ in range(3)),
        *(normal(batch, W, A) for _ in range(2)),
        jnp.asarray(3 * rng.standard_normal(H), np.float32),
        jnp.asarray(bias_HQX, np.float32),
        None if keep_HWX is None else jnp.asarray(keep_HWX, np.float32),
    )


def outputs_and_gradients(function, shape, args, seed=1):
    """The output and the gradient of a random weighting of it by every argument but the last."""
    *varied, keep = args
    weights = np.random.default_rng(seed).standard_normal(args[0].shape)

    def loss(*varied):
        y = function(shape, *varied, keep).astype(jnp.float32)
        return jnp.sum(y * jnp.asarray(weights, y.dtype)), y

    with jax.default_matmul_precision("highest"):
        gradients, y = jax.grad(loss, argnums=tuple(range(len(varied))), has_aux=True)(*varied)
    return {"y": y} | dict(zip(NAMES, gradients))


SHAPES = {
    "one chunk": (WindowShape(128, 2, 128), 2, 1, 0.0),
    "dropout": (WindowShape(128, 2, 128), 3, 2, 0.2),
    "two heads share the lanes": (WindowShape(128, 4, 64), 1, 3, 0.1),
    "four heads, two tiles, no unit lengths": (WindowShape(256, 4, 32, qk_norm=False), 2, 2, 0.1),
    "wide heads": (WindowShape(128, 2, 256), 2, 2, 0.0),
    "several chunks a window": (WindowShape(1024, 1, 128), 1, 2, 0.1),
}


@pytest.mark.parametrize("name", SHAPES)
def test_outputs_and_all_gradients_equal_the_plain_form(name, capfd):
    shape, batch, windows, dropout = SHAPES[name]
    args = arguments(shape, batch, windows * shape.window, dropout)
    assert shape.misfit() is None
    expected = outputs_and_gradients(plain_window_attention, shape, args)
    computed = outputs_and_gradients(window_attention, shape._replace(interpret=True), args)
    for part, value in expected.items():
        error = np.max(np.abs(computed[part] - value)) / np.max(np.abs(value))
        assert error < 5e-6, (part, error)
    assert "race" not in "".join(capfd.readouterr()).lower()


def test_bfloat16_differs_by_no_more_than_its_rounding():
    shape = WindowShape(128, 2, 64)
    args = arguments(shape, 2, 256, 0.0, jnp.bfloat16)
    exact = tuple(None if x is None else x.astype(jnp.float32) for x in args)
    expected = outputs_and_gradients(plain_window_attention, shape, exact)
    computed = outputs_and_gradients(window_attention, shape._replace(interpret=True), args)
    for part, value in expected.items():
        assert computed[part].dtype in (jnp.bfloat16, jnp.float32)
        error = np.max(np.abs(computed[part].astype(jnp.float32) - value)) / np.max(np.abs(value))
        assert error < 0.03, (part, error)


@pytest.mark.parametrize(
    ("shape", "part"),
    [
        (WindowShape(192, 2, 128), "window = 192"),
        (WindowShape(128, 2, 96), "head_size = 96"),
        (WindowShape(128, 3, 64), "num_heads = 3"),
    ],
)
def test_a_shape_that_does_not_fit_is_named(shape, part):
    assert part in shape.misfit()


COMPILE = """
import itertools, sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from brt.benchmarks import topologies
from brt.models.fast.window_kernel import TILE, WindowShape, window_attention

device = topologies.devices_of(topologies.find(sys.argv[1]))[0]
one = NamedSharding(Mesh(np.array([device]), ("device",)), PartitionSpec())
for (W, H, K), dtype, dropout in itertools.product(
    [(128, 16, 64), (512, 8, 128), (2048, 8, 128)], [jnp.bfloat16, jnp.float32], [False, True]
):
    shape, X = WindowShape(W, H, K), W + TILE

    def of(*sizes, dtype=dtype):
        return jax.ShapeDtypeStruct(sizes, dtype, sharding=one)

    q, cache, f32 = of(1, 4096, H * K), of(1, W, H * K), jnp.float32
    args = [q, q, q, cache, cache, of(H, dtype=f32), of(H, TILE, X, dtype=f32)]
    args += [of(H, W, X, dtype=f32)] * dropout

    def step(gradient, *args):
        y, backward = jax.vjp(lambda *args: window_attention(shape, *args), *args)
        return y, backward(gradient)[:7]

    jax.jit(step).lower(q, *args).compile()
"""


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("libtpu"), reason="libtpu is not installed")
@pytest.mark.parametrize("slice_name", ["v4-8", "v5e-4", "v5p-8", "v6e-4"])
def test_it_compiles_for_tpus(slice_name):
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", COMPILE, slice_name]
    subprocess.run(command, env=environment, check=True, timeout=600)
