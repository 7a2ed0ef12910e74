"""Heads of encoders: classes, and spans of a text."""

import functools

import jax
from flax import nnx
from jax.nn.initializers import zeros

from brt.models.layers.initializers import normal, parameter
from brt.models.ops import at_least_float32
from brt.pretrained.activations import ACTIVATIONS
from brt.pretrained.backbone_layer import linear
from brt.pretrained.encoders.encoder import Encoder
from brt.pretrained.names import Tensor, matrix_tensors, optional


class ClassesHead(nnx.Module):
    """Scores of N classes from the first position: dense, activation, output."""

    def __init__(self, rngs: nnx.Rngs, body: Encoder, classes: int):
        drawn = functools.partial(parameter, rngs, normal(body.std))
        self.activation = body.head_activation
        self.dense_DU = drawn(body.width, body.width)
        self.dense_bias_U = parameter(rngs, zeros, body.width)
        self.output_UN = drawn(body.width, classes)
        self.output_bias_N = parameter(rngs, zeros, classes)

    def __call__(self, x_BD: jax.Array) -> jax.Array:
        u_BU = ACTIVATIONS[self.activation](linear(x_BD, self.dense_DU, self.dense_bias_U))
        return at_least_float32(linear(u_BU, self.output_UN, self.output_bias_N))

    @staticmethod
    def tensors(body: Encoder) -> list[Tensor]:
        names = body.classes_names
        if names is None:
            return []
        dense = matrix_tensors(names.dense, "dense_DU", "dense_bias_U")
        return optional(dense + matrix_tensors(names.output, "output_UN", "output_bias_N"))


class SpansHead(nnx.Module):
    """Scores of every position as the first and as the last of an answer, and of kinds of answer.

    kinds: of answers, scored from the first position, not stored in folders; 0 for none.
    """

    def __init__(self, rngs: nnx.Rngs, body: Encoder, kinds: int = 3):
        self.ends_DN = parameter(rngs, normal(body.std), body.width, 2)
        self.ends_bias_N = parameter(rngs, zeros, 2)
        if kinds:
            self.kinds_DN = parameter(rngs, normal(body.std), body.width, kinds)
            self.kinds_bias_N = parameter(rngs, zeros, kinds)

    def __call__(self, x_BTD: jax.Array) -> tuple[jax.Array, jax.Array]:
        y_BTN = at_least_float32(linear(x_BTD, self.ends_DN, self.ends_bias_N))
        return y_BTN[..., 0], y_BTN[..., 1]

    def kinds(self, x_BD: jax.Array) -> jax.Array:
        return at_least_float32(linear(x_BD, self.kinds_DN, self.kinds_bias_N))

    @staticmethod
    def tensors(body: Encoder) -> list[Tensor]:
        if body.spans_name is None:
            return []
        return optional(matrix_tensors(body.spans_name, "ends_DN", "ends_bias_N"))
