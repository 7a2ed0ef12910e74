"""Gates, which update a recurrent state with the results of its attention."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from brt.models.layers.initializers import DENSE, SMALL, normal, parameter
from brt.models.ops import Matrix, at_least_float32

KINDS = ("fixed", "lstm")
FORMS = ("paper", "meliad")
BIASES = ("small", "zero", "one")

GateWeights = dict[str, Any]
"""The matrices side by side, a `Matrix` with E = D (fixed) or 3 D (lstm) columns, and the
biases.
"""


class GateInput(NamedTuple):
    """An input h of a gate: its projection and the names of the matrices, alone and side by side.

    `matrix` has separate axes of h, so that heads stay split over the model axis.
    """

    equation: str
    candidate: str
    input: str
    forget: str
    matrix: str


BOTH_ATTENTIONS = GateInput(
    "XBHSK,XHKE->BSE", "candidate_CD", "input_CD", "forget_CD", "matrix_XHKE"
)
"""Attention to states and to tokens, X = 2; C = X * H * K."""
ONE_ATTENTION = GateInput("BHSK,HKE->BSE", "candidate_AD", "input_AD", "forget_AD", "matrix_HKE")
MLP = GateInput("BSF,FE->BSE", "candidate_FD", "input_FD", "forget_FD", "matrix_FE")


class Gate(nnx.Module):
    """Gated update of the recurrent state, c' = keep * c + take * z (Block-Recurrent, section 3.3).

    fixed: keep = sigmoid(b_g), one learned constant per feature; take = 1 - keep      (eq. 1-3)
    lstm:  keep = sigmoid(W_f h + b_f + 1), take = sigmoid(W_i h + b_i - 1)            (eq. 4-7)
    z = W_z h + b_z, inside a tanh for lstm.

    The constants +1 and -1 stay outside the parameters, because Adafactor scales its steps by the
    size of a parameter.

    Args:
        source: the input h.
        sizes: of the axes of h that are projected, such as (X, H, K).
        width: D.
        kind: "fixed" or "lstm".
        form: "paper", with small initial matrices (appendix B), or "meliad", the released code: no
            b_z, W_z initialised as other matrices, and tanh if `squash`, for both kinds.
        biases: "small": the paper's N(0, 0.1^2) and constants +1 and -1. Without constants: "zero",
            and "one" for keep and 0 for take.
    """

    def __init__(
        self,
        rngs: nnx.Rngs,
        source: GateInput,
        sizes: tuple[int, ...],
        width: int,
        kind: str,
        form: str = "paper",
        squash: bool = False,
        biases: str = "small",
    ):
        self.kind, self.source, self.sizes = kind, source, sizes
        self.constant = 1.0 if biases == "small" else 0.0
        self.squash = kind == "lstm" if form == "paper" else squash

        def matrix(initializer):
            return parameter(rngs, initializer, math.prod(sizes), width)

        def bias(keeps=False):
            value = jax.nn.initializers.constant(float(biases == "one" and keeps))
            return parameter(rngs, normal(0.1) if biases == "small" else value, width)

        setattr(self, source.candidate, matrix(SMALL if form == "paper" else DENSE))
        self.candidate_bias_D = bias() if form == "paper" else None
        if kind == "fixed":
            self.keep_bias_D = bias(keeps=True)
        else:
            setattr(self, source.input, matrix(SMALL))
            setattr(self, source.forget, matrix(SMALL))
            self.input_bias_D = bias()
            self.forget_bias_D = bias(keeps=True)

    def weights(self, dtype: DTypeLike) -> GateWeights:
        source = self.source
        matrices = [getattr(self, source.candidate)[...]]
        biases = {}
        if self.candidate_bias_D is not None:
            biases["candidate_bias_D"] = self.candidate_bias_D[...]
        if self.kind == "fixed":
            biases["keep_bias_D"] = self.keep_bias_D[...]
        else:
            matrices += [getattr(self, source.input)[...], getattr(self, source.forget)[...]]
            biases["input_bias_D"] = self.input_bias_D[...]
            biases["forget_bias_D"] = self.forget_bias_D[...]
        matrix = jnp.concatenate(matrices, axis=1).reshape(*self.sizes, -1)
        return biases | {source.matrix: Matrix(matrix, dtype)}

    def __call__(
        self, states_BSD: jax.Array, h: jax.Array | tuple[jax.Array, ...], weights: GateWeights
    ) -> tuple[jax.Array, jax.Array]:
        """Returns the next states, (B, S, D) in the states' type, and keep, which broadcasts to
        them.

        h: with the axes of the equation; a tuple of arrays is stacked along a first axis.
        """
        h = h if isinstance(h, tuple) else (h,)
        products_BSE = at_least_float32(weights[self.source.matrix](self.source.equation, *h))
        z_BSD, *products = jnp.split(products_BSE, 1 if self.kind == "fixed" else 3, axis=-1)
        if self.candidate_bias_D is not None:
            z_BSD = z_BSD + weights["candidate_bias_D"]
        if self.squash:
            z_BSD = jnp.tanh(z_BSD)
        if self.kind == "fixed":
            keep = jax.nn.sigmoid(weights["keep_bias_D"])
            take = 1.0 - keep
        else:
            input_BSD, forget_BSD = products
            input_BSD = input_BSD + weights["input_bias_D"]
            forget_BSD = forget_BSD + weights["forget_bias_D"]
            keep = jax.nn.sigmoid(forget_BSD + self.constant)
            take = jax.nn.sigmoid(input_BSD - self.constant)
        return keep * states_BSD + take * z_BSD, keep
