"""The kernels of the delta rule compile for four cards, where JAX's CUDA plugin is installed."""

import pytest
from test_gpu_compilation import CARDS, KIB, check_each, compiled, pytestmark, show

__all__ = ["pytestmark"]

COMPILE = """
import json, sys
import jax, jax.numpy as jnp, numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from brt.benchmarks import hlo, roofline
from brt.models.fast.kernels import gpu_delta
from brt.models.fast.kernels.parts import Heads

target, (T, H, K), dtype, by_channel = json.loads(sys.argv[1])
topology = topologies.get_topology_desc(platform="cuda", target_config=target, topology="1x1x1")
mesh = Mesh(np.array(topology.devices).reshape(1, 1), ("data", "model"))
heads, B, dtype = Heads(H, K), 2, jnp.dtype(dtype)

def of(*sizes):
    return jax.ShapeDtypeStruct(sizes, jnp.float32, sharding=NamedSharding(mesh, PartitionSpec()))

def step(weights, *args):
    rule = lambda matrix, *inputs: gpu_delta.delta_rule(heads, dtype, matrix, inputs)
    found, backward = jax.vjp(rule, *args)
    return found, backward(weights)

matrix, x, numbers = of(B, H, K, K), of(B, T, H, K), of(B, T, H)
decays = x if by_channel else numbers
with jax.set_mesh(mesh):
    assert not gpu_delta.misfit(heads, T, dtype)
    lowered = jax.jit(step).lower((matrix, x), matrix, x, x, x, decays, numbers)
    program = hlo.parse(lowered.compile().as_text())

# The plan of a step counts products with the matrix, three in each pass and three for gradients.
flops = sum(kernel.flops.get(roofline.TRITON, 0) for kernel, _ in roofline.Kernels(program).runs())
assert flops > 9 * 2 * B * T * H * K**2
"""


@pytest.mark.parametrize("by_channel", [False, True])
@pytest.mark.parametrize("name", CARDS)
def test_published_sizes_fit_without_spills_or_atomic_operations(name, by_channel, tmp_path):
    card, given = CARDS[name], ((512, 8, 128), "bfloat16", by_channel)
    kernels = compiled(card, *given, folder=tmp_path, program=COMPILE, names="delta")
    show(card, *given[:2], kernels)
    assert len(kernels) == 4
    check_each(kernels, card)


@pytest.mark.parametrize(
    ("sizes", "dtype", "by_channel"),
    [
        ((128, 2, 32), "bfloat16", False),
        ((128, 2, 64), "bfloat16", True),
        ((128, 2, 256), "bfloat16", False),
        ((128, 2, 256), "bfloat16", True),
        ((128, 2, 64), "float32", False),
        ((100, 2, 128), "float32", True),
        ((100, 2, 256), "float32", False),
    ],
)
def test_other_sizes_compile_for_a_small_card(sizes, dtype, by_channel, tmp_path):
    card = CARDS["4090"]
    given = sizes, dtype, by_channel
    kernels = compiled(card, *given, folder=tmp_path, program=COMPILE, names="delta")
    show(card, *given[:2], kernels)
    assert all(kernel.shared <= 99 * KIB for kernel in kernels.values())
