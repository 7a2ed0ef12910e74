"""Activation functions by their names in a config.json."""

from collections.abc import Callable

import jax


def _exact_gelu(x):
    return jax.nn.gelu(x, approximate=False)


def _tanh_gelu(x):
    return jax.nn.gelu(x, approximate=True)


ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "gelu_new": _tanh_gelu,
    "gelu_pytorch_tanh": _tanh_gelu,
    "gelu": _exact_gelu,
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
}
"""gelu_new and gelu_pytorch_tanh are the tanh form, gelu the exact one."""
