"""The gated delta rule against a recording of the one in Transformers.

`recordings/gated_delta_rule.npz` has inputs, outputs and gradients of transformers 5.24.0's
`torch_recurrent_gated_delta_rule` (of Qwen3-Next), token by token in float32, which makes queries
and keys of unit length and divides queries by the root of their size K.
"""

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from marking import slow
from tiny_models import quick_jit

from brt.models.block_recurrent.gated_delta import delta_rule, inverse_of_unit_lower
from brt.models.ops import unit_heads

INPUTS = "queries", "keys", "values", "log_decays", "steps"


@pytest.fixture(scope="module")
def recording():
    with np.load(Path(__file__).parents[1] / "recordings" / "gated_delta_rule.npz") as archive:
        return dict(archive)


def run(matrix_BHKK, inputs, weights_BTHK, window):
    q_BTHK, k_BTHK, *others = inputs
    size = q_BTHK.shape[-1] ** 0.5
    inputs = unit_heads(q_BTHK) / size, unit_heads(k_BTHK), *others
    read = []
    for start in range(0, q_BTHK.shape[1], window):
        block = [x[:, start : start + window] for x in inputs]
        matrix_BHKK, read_BWHK = delta_rule(matrix_BHKK, block)
        read.append(read_BWHK)
    read_BTHK = jnp.concatenate(read, axis=1)
    loss = jnp.sum(read_BTHK * weights_BTHK) + jnp.sum(jnp.square(matrix_BHKK))
    return loss, (read_BTHK, matrix_BHKK)


@pytest.mark.parametrize("window", [8, slow(1), slow(24)])
def test_values_read_and_gradients_are_those_of_transformers(recording, window):
    inputs = [jnp.asarray(recording[name]) for name in INPUTS]
    both = quick_jit(jax.value_and_grad(run, argnums=(0, 1), has_aux=True), static_argnums=3)
    with jax.default_matmul_precision("highest"):
        (_, (read, after)), (before_grad, grads) = both(
            jnp.asarray(recording["before"]), inputs, recording["weights"], window
        )
    found = {"read": read, "after": after, "grads/before": before_grad}
    found |= {f"grads/{name}": grad for name, grad in zip(INPUTS, grads, strict=True)}
    for name, ours in found.items():
        largest = np.abs(recording[name]).max()
        np.testing.assert_allclose(ours, recording[name], rtol=0, atol=1e-5 * largest, err_msg=name)


@pytest.mark.parametrize("size", [1, 2, 7, 16, 100])
def test_the_inverse_of_unit_lower_matrices_is_that_of_numpy(size):
    x = np.random.default_rng(size).uniform(-1, 1, (2, 1, 3, size, size)) * 0.3
    with jax.default_matmul_precision("highest"):
        found = inverse_of_unit_lower(jnp.asarray(x, jnp.float32))
    expected = np.linalg.inv(np.tril(x, -1) + np.eye(size))
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())


SOLVES = """
import jax, jax.numpy as jnp
from brt.models.block_recurrent.gated_delta import delta_rule
k = jax.random.normal(jax.random.key(0), (64, 16, 4, 16)) / 4
others = k, -jnp.ones(k.shape[:3]), jnp.ones(k.shape[:3]) / 2
matrix = jnp.zeros((64, 4, 16, 16))
grad = jax.grad(lambda k: sum(jnp.sum(x**2) for x in delta_rule(matrix, (k, k, *others))))
step = jax.jit(lambda k: [grad(k + i / 10) for i in range(4)])
for _ in range(20):
    jax.block_until_ready(step(k))
"""


def test_independent_solves_of_one_step_end():
    # In a process with two threads: with batched triangular solves it never ended on two cores.
    environment = {**os.environ, "NPROC": "2", "XLA_FLAGS": ""}
    subprocess.run([sys.executable, "-c", SOLVES], check=True, timeout=300, env=environment)
