"""Activation functions by their names in a config.json."""

import functools
from collections.abc import Callable
from typing import Annotated

import jax
import jax.numpy as jnp

from brt.checks import OneOf

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "gelu_new": functools.partial(jax.nn.gelu, approximate=True),
    "gelu_pytorch_tanh": functools.partial(jax.nn.gelu, approximate=True),
    "gelu": functools.partial(jax.nn.gelu, approximate=False),
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "tanh": jnp.tanh,
}
Activation = Annotated[str, OneOf(tuple(ACTIVATIONS))]
