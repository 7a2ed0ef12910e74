"""The kernels of the delta rule compile for four cards, where JAX's CUDA plugin is installed."""

import functools

import pytest
from test_gpu_compilation import NAMES, check_each, compiled, pytestmark

__all__ = ["pytestmark"]

DELTA = """
T, H, K = sizes
heads = Heads(H, K)

def step(weights, *args):
    rule = lambda matrix, *inputs: gpu_delta.delta_rule(heads, dtype, matrix, inputs)
    found, backward = jax.vjp(rule, *args)
    return found, backward(weights)

matrix, x, numbers = of(B, H, K, K), of(B, T, H, K), of(B, T, H)
with jax.set_mesh(mesh):
    assert not gpu_delta.misfit(heads, T, dtype)
    flops = flops_of_kernels(step, (matrix, x), matrix, x, x, x, x, numbers)
# The plan of a step counts products with the matrix, three in each pass and three for gradients.
assert flops > 9 * 2 * B * T * H * K**2
"""
compiled = functools.partial(compiled, program=DELTA, names="delta")


@pytest.mark.parametrize("name", NAMES)
def test_published_sizes_fit_without_spills_or_atomic_operations(name, tmp_path):
    check_each(compiled(name, (512, 8, 128), "bfloat16", None, folder=tmp_path), 4)


@pytest.mark.parametrize(
    ("sizes", "dtype"),
    [
        ((128, 2, 32), "bfloat16"),
        ((128, 2, 256), "bfloat16"),
        ((128, 2, 64), "float32"),
        ((100, 2, 128), "float32"),
        ((100, 2, 256), "float32"),
    ],
)
def test_other_sizes_compile_for_a_small_card(sizes, dtype, tmp_path):
    assert compiled("4090", sizes, dtype, None, folder=tmp_path)
