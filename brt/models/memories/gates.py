"""Gates, by which a recurrent state takes in what a block of tokens tells it."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from brt.checks import check_choice
from brt.models.layers.initializers import DENSE, SMALL, normal, parameter
from brt.models.layers.norms import wide
from brt.models.loop_weights import cast_before, in_loop

KINDS = ("fixed", "lstm")
FORMS = ("paper", "meliad")
BIASES = ("small", "zero", "one")

GateWeights = dict[str, Any]
"""matrix_..ND, the N = 1 (fixed) or 3 (lstm) matrices side by side, and biases; named as shapes."""


class Gate(nnx.Module):
    """c' = c * keep + z * take, with z a projection of h.

    fixed: keep = sigmoid(b_g), one vector for all states; take = 1 - keep (eq. 1-3).
    lstm: keep = sigmoid(W_f h + b_f + 1), take = sigmoid(W_i h + b_i - 1) (eq. 4-7).

    Args:
        letter: the axis of h in the parameters' names: A or C (attention), F (feed-forward).
        input_size: length of that axis, f_in.
        width: D of the states.
        kind: "fixed" or "lstm".
        form: "paper" has z = W_z h + b_z, inside a tanh for lstm, and draws every matrix
            small (appendix B). "meliad", the released code, has no b_z, draws W_z as any
            other matrix, and applies tanh where `squash` says, whatever the kind.
        squash: with form "meliad", whether z goes through tanh.
        biases: of the gates, at the beginning. "small" is the paper's way, N(0, 0.1^2) beside
            constants +1 and -1 outside the parameters. The ways it advises against: "zero", and
            "one" for what keeps and 0 for what takes, as in other LSTMs, both without the
            constants.
        parts: equal parts that h consists of, each of which a mesh may split.

    Source: Block-Recurrent, sections 3.3-3.4, appendix B. The constants +1 and -1 stay
    outside the parameters, which Adafactor scales its steps by.
    """

    def __init__(
        self,
        rngs: nnx.Rngs,
        *,
        letter: str,
        input_size: int,
        width: int,
        kind: str,
        form: str = "paper",
        squash: bool = False,
        biases: str = "small",
        parts: int = 1,
    ):
        check_choice("RecurrentCell.gate", kind, KINDS)
        check_choice("RecurrentCell.gate_form", form, FORMS)
        check_choice("RecurrentCell.gate_biases", biases, BIASES)
        self.kind = kind
        self.letter = letter
        self.parts = parts
        self.constant = 1.0 if biases == "small" else 0.0
        self.squash = kind == "lstm" if form == "paper" else squash

        def matrix(name, initializer):
            setattr(self, f"{name}_{letter}D", parameter(rngs, initializer, input_size, width))

        def bias(keeps=False):
            value = jax.nn.initializers.constant(float(biases == "one" and keeps))
            return parameter(rngs, normal(0.1) if biases == "small" else value, width)

        matrix("candidate", SMALL if form == "paper" else DENSE)
        self.candidate_bias_D = bias() if form == "paper" else None
        if kind == "fixed":
            self.keep_bias_D = bias(keeps=True)
        else:
            matrix("input", SMALL)
            matrix("forget", SMALL)
            self.input_bias_D = bias()
            self.forget_bias_D = bias(keeps=True)

    def weights(self, dtype: DTypeLike) -> GateWeights:
        """Returns the parameters as a loop over blocks uses them: cast, matrices side by side.

        dtype: of h.
        """
        names = ("candidate",) if self.kind == "fixed" else ("candidate", "input", "forget")
        matrix = jnp.stack([getattr(self, f"{n}_{self.letter}D")[...] for n in names], axis=1)
        letters = self.letter
        if self.parts > 1:  # what attentions read, each split over the model axis
            matrix = matrix.reshape(self.parts, -1, *matrix.shape[1:])
            letters = "XA"
        biases = ("candidate_bias_D", "keep_bias_D", "input_bias_D", "forget_bias_D")
        weights = {name: getattr(self, name, None) for name in biases}
        return {
            f"matrix_{letters}ND": cast_before(matrix, dtype),
            **{name: bias[...] for name, bias in weights.items() if bias is not None},
        }

    def __call__(
        self, states_BSD: jax.Array, h_BSX: jax.Array, weights: GateWeights | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """Maps (B, S, D) states and inputs to the next states.

        Args:
            states_BSD: (B, S, D).
            h_BSX: (B, S, f_in), or (B, S, parts, A).
            weights: `weights(h_BSX.dtype)`, computed before a loop; None: computed now.

        Returns:
            (B, S, D) in the states' type, and keep, broadcastable to the same shape.
        """
        weights = self.weights(h_BSX.dtype) if weights is None else weights
        matrix_XND = in_loop(next(x for name, x in weights.items() if name.startswith("matrix_")))
        h_BSX = h_BSX.reshape(*h_BSX.shape[:2], *matrix_XND.shape[:-2])
        # Not as one axis: of (parts, A) each part is split over the model axis, and stays so.
        over = tuple(range(2, h_BSX.ndim)), tuple(range(matrix_XND.ndim - 2))
        projected_BSND = wide(jax.lax.dot_general(h_BSX, matrix_XND, (over, ((), ()))))
        z_BSD = projected_BSND[:, :, 0]
        if self.candidate_bias_D is not None:
            z_BSD = z_BSD + weights["candidate_bias_D"]
        if self.squash:
            z_BSD = jnp.tanh(z_BSD)
        if self.kind == "fixed":
            keep = jax.nn.sigmoid(weights["keep_bias_D"])
            take = 1.0 - keep
        else:
            input_BSD = projected_BSND[:, :, 1] + weights["input_bias_D"]
            forget_BSD = projected_BSND[:, :, 2] + weights["forget_bias_D"]
            keep = jax.nn.sigmoid(forget_BSD + self.constant)
            take = jax.nn.sigmoid(input_BSD - self.constant)
        return states_BSD * keep + z_BSD * take, keep
