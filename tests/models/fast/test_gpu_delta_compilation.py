"""The kernels of the delta rule compile for four cards, where JAX's CUDA plugin is installed."""

import functools

import pytest
from test_gpu_compilation import NAMES, check_each, compiled, pytestmark

__all__ = ["pytestmark"]

DELTA = """
(T, H, K), by_channel = sizes, option
heads = Heads(H, K)

def step(weights, *args):
    rule = lambda matrix, *inputs: gpu_delta.delta_rule(heads, dtype, matrix, inputs)
    found, backward = jax.vjp(rule, *args)
    return found, backward(weights)

matrix, x, numbers = of(B, H, K, K), of(B, T, H, K), of(B, T, H)
decays = x if by_channel else numbers
with jax.set_mesh(mesh):
    assert not gpu_delta.misfit(heads, T, dtype)
    flops = flops_of_kernels(step, (matrix, x), matrix, x, x, x, decays, numbers)
# The plan of a step counts products with the matrix, three in each pass and three for gradients.
assert flops > 9 * 2 * B * T * H * K**2
"""
compiled = functools.partial(compiled, program=DELTA, names="delta")


@pytest.mark.parametrize("by_channel", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_published_sizes_fit_without_spills_or_atomic_operations(name, by_channel, tmp_path):
    check_each(compiled(name, (512, 8, 128), "bfloat16", by_channel, folder=tmp_path), 4)


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
    assert compiled("4090", sizes, dtype, by_channel, folder=tmp_path)
