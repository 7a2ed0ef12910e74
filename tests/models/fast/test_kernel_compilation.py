"""The Pallas kernels lower for TPUs, and compile for four kinds where libtpu is installed."""

import functools
import importlib.util
import os
import re
import subprocess
import sys

import jax
import pytest
from flax import nnx
from paths import ROOT

from brt import BlockRecurrentTransformer, RecurrentCell
from brt.models.diagonal import run_diagonally
from brt.models.fast import kernel_forms, table

COMPILE = """
import functools, itertools, sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from brt.benchmarks import topologies
from brt.models.fast.kernels import delta, states, window
from brt.models.fast.kernels.cell import CellParameters, CellTokens, misfit, run_cell
from brt.models.fast.kernels.parts import Heads, TileDropout, tile_size
from brt.models.fast.kernels.relative import attend_by_distance
from brt.models.ops import at_least_float32
from brt.models.relative_attention import Positions, distances

device = topologies.devices_of(topologies.find(sys.argv[1]))[0]
one = NamedSharding(Mesh(np.array([device]), ("device",)), PartitionSpec())

def of(*sizes, dtype=None):
    return jax.ShapeDtypeStruct(sizes, dtype or activations, sharding=one)


def compile_attention(function, given):
    def step(gradient, *given):
        y, backward = jax.vjp(function, *given)
        gradients = jax.tree.map(lambda y: gradient[:, : y.shape[1]], y)
        return y, backward(gradients)[:-1]

    jax.jit(step).lower(given[0], *given).compile()


f32 = jnp.float32
WINDOWS = [(32, 2, 64), (128, 16, 64), (256, 8, 16), (512, 8, 128), (1024, 4, 64), (2048, 8, 128),
           (4096, 8, 128)]
for (W, H, K), activations, dropout in [
    *itertools.product(WINDOWS, [jnp.bfloat16, jnp.float32], [True]),
    ((512, 8, 128), jnp.bfloat16, False),
]:
    heads = Heads(H, K)
    if window.misfit(heads, W, activations):
        continue
    q, cache = of(1, 2 * W, H, K), of(1, W, H, K)
    args = [q, q, q, cache, cache, of(H, dtype=f32), of(H, W, dtype=f32)]
    if dropout:
        args.append(TileDropout(of(H, W // tile_size(W), 2, dtype=jnp.uint32), 0.1))
    compile_attention(functools.partial(window.attend_to_window, heads), args)

BLOCKS = [(32, 512, 2, 64), (48, 100, 2, 64), (512, 512, 8, 128), (1024, 512, 4, 64),
          (512, 512, 8, 16), (512, 512, 4, 256), (1024, 1024, 8, 128), (1024, 1024, 2, 64),
          (512, 1024, 2, 64)]
for (Q, X, H, K), activations in itertools.product(BLOCKS, [jnp.bfloat16, jnp.float32]):
    heads = Heads(H, K)
    if states.misfit(heads, Q, X, activations):
        continue
    keep = TileDropout(of(H, Q // tile_size(Q), 2, dtype=jnp.uint32), 0.1)
    args = [of(1, 4, Q, H, K), *[of(1, 4, X, H, K)] * 2, of(H, dtype=f32)]
    compile_attention(functools.partial(states.attend_to_states, heads), [*args, keep])

CELLS = [(512, 512, 8, 128), (256, 256, 8, 128), (128, 256, 4, 64), (256, 256, 16, 16),
         (256, 256, 2, 256), (512, 16, 4, 128)]
for (S, W, H, K), activations in itertools.product(CELLS, [jnp.bfloat16, jnp.float32]):
    heads, A = Heads(H, K), H * K
    D, N = A, 3 if W < 512 else 1
    if misfit(heads, S, W, D, activations):
        continue
    sizes = (D,), (S, D), (4, D, A), (H,), (H,), (2, A, N * D), (D,)
    *arrays, keep = (of(*size, dtype=jnp.float32) for size in sizes)
    parameters = CellParameters(*arrays, {"keep": keep})
    tokens = CellTokens(*[of(1, 2 * W, A)] * 2, *[of(1, W, A)] * 2)

    def update(states, products, biases):
        keep = biases["keep"]
        parts = jnp.split(at_least_float32(products), products.shape[-1] // states.shape[-1], -1)
        return keep * states + sum(parts), keep

    def step(*given):
        y, backward = jax.vjp(lambda *given: run_cell(heads, update, *given), *given)
        return backward(y)

    jax.jit(step).lower(parameters, of(1, S, D, dtype=jnp.float32), tokens).compile()

for (T, J, H, K, future), activations, dropout in [
    ((384, 768, 16, 64, False), jnp.bfloat16, True),
    ((384, 768, 16, 64, False), jnp.float32, True),
    ((168, 168, 8, 64, True), jnp.bfloat16, True),
    ((384, 768, 16, 64, None), jnp.bfloat16, True),
    ((1024, 1024, 2, 128, False), jnp.float32, True),
    ((512, 1024, 2, 64, True), jnp.float32, True),
    ((512, 512, 2, 256, False), jnp.float32, True),
    ((512, 512, 16, 16, False), jnp.float32, True),
]:
    B, C = 2, len(distances(T, J, future))
    positions = None if future is None else Positions(of(C, H, K), of(C, H))
    masks = of(B, T, J, dtype=bool), of(B, H, T, J, dtype=bool) if dropout else None
    q, k, u = of(B, T, H, K), of(B, J, H, K), of(H, K, dtype=jnp.float32)

    def step(dy, masks, *given):
        def attend(*given):
            return attend_by_distance(Heads(H, K, False), *given, *masks, 0.2)

        y, backward = jax.vjp(attend, *given)
        return y, backward(dy)

    jax.jit(step).lower(q, masks, q, k, k, u, positions).compile()

for K, activations in [(128, jnp.bfloat16), (256, jnp.bfloat16), (128, jnp.float32)]:
    (B, T, H), heads = (2, 300, 2), Heads(2, K)
    assert not delta.misfit(heads, T, activations)
    matrix, x, steps = of(B, H, K, K, dtype=f32), of(B, T, H, K, dtype=f32), of(B, T, H, dtype=f32)

    def step(weights, matrix, *inputs):
        rule = functools.partial(delta.delta_rule, heads, activations)
        found, backward = jax.vjp(rule, matrix, inputs)
        return found, backward(weights)

    jax.jit(step).lower((matrix, x), matrix, x, x, x, x, steps).compile()
"""


@pytest.fixture
def on_tpu(monkeypatch):
    for module in table, kernel_forms:
        monkeypatch.setattr(module, "on_tpu", lambda: True)


def split_model(**settings):
    """The graph and the parameters of a stack of two layers, with shapes for arrays."""
    sizes = dict(vocabulary_size=256, num_layers=2, width=128, num_heads=2, head_size=64)
    sizes |= dict(feed_forward_size=128, window=128, activation_dtype="bfloat16")
    make = functools.partial(BlockRecurrentTransformer, **sizes, **settings)
    return nnx.split(nnx.eval_shape(lambda: make(nnx.Rngs(0))))


@pytest.mark.usefixtures("on_tpu")
@pytest.mark.parametrize(("feedback", "kernel"), [(False, "cell"), (True, "block_attention")])
def test_a_recurrent_stack_lowers_for_tpus(feedback, kernel):
    cell = functools.partial(RecurrentCell, num_states=128)
    graph, params = split_model(recurrent_layers=(1,), dropout=0.1, feedback=feedback, cell=cell)

    def nats(params, tokens_BT, key):
        model = nnx.merge(graph, params)
        x_BTD, _, _ = model.stack(model.embed(tokens_BT), model.init_caches(1), key)
        return model.token_losses(x_BTD, tokens_BT)[0].sum()

    inputs = jax.ShapeDtypeStruct((1, 256), "int32"), jax.eval_shape(lambda: jax.random.key(0))
    lowered = jax.jit(jax.grad(nats)).trace(params, *inputs).lower(lowering_platforms=("tpu",))
    kernels = set(re.findall(r'kernel_name = "(\w+)"', lowered.as_text()))
    assert any(name.startswith("window") for name in kernels), kernels
    assert any(name.startswith(kernel) for name in kernels), kernels


@pytest.mark.usefixtures("on_tpu")
def test_layers_at_once_lower_for_tpus():
    graph, params = split_model()

    def run(params, tokens_KBT):
        model = nnx.merge(graph, params)
        return run_diagonally(model, jax.vmap(model.embed)(tokens_KBT), model.init_caches(1))[0]

    traced = jax.jit(run).trace(params, jax.ShapeDtypeStruct((2, 1, 256), "int32"))
    assert traced.lower(lowering_platforms=("tpu",))


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("libtpu"), reason="libtpu is not installed")
@pytest.mark.parametrize("slice_name", ["v4-8", "v5e-4", "v5p-8", "v6e-4"])
def test_it_compiles_for_tpus(slice_name):
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", COMPILE, slice_name]
    subprocess.run(command, env=environment, check=True, timeout=1800)
