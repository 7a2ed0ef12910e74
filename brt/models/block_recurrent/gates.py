"""Gates, by which a recurrent state takes in what a block of tokens tells it."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from brt.checks import check_choice
from brt.models.fast.loop_weights import cast_before, in_loop, product
from brt.models.layers.initializers import DENSE, SMALL, normal, parameter
from brt.models.layers.norms import wide

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
        axes: of h, if it comes with more than B, S and its own one: their letters, such as "XBHSK".
            In this order those but B and S make up the axis of h.
        sizes: of those.

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
        axes: str | None = None,
        sizes: tuple[int, ...] | None = None,
    ):
        check_choice("RecurrentCell.gate", kind, KINDS)
        check_choice("RecurrentCell.gate_form", form, FORMS)
        check_choice("RecurrentCell.gate_biases", biases, BIASES)
        self.kind = kind
        self.letter = letter
        self.axes = axes or f"BS{letter}"
        self.sizes = sizes or (input_size,)
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

    @property
    def _letters(self):
        return self.axes.replace("B", "").replace("S", "")

    def weights(self, dtype: DTypeLike) -> GateWeights:
        """Returns the parameters as a loop over blocks uses them: cast, matrices side by side.

        dtype: of h.
        """
        names = ("candidate",) if self.kind == "fixed" else ("candidate", "input", "forget")
        matrix = jnp.stack([getattr(self, f"{n}_{self.letter}D")[...] for n in names], axis=1)
        # Not as one axis: of (X, H, K) the heads are split over the model axis, and stay so.
        matrix = matrix.reshape(*self.sizes, *matrix.shape[1:])
        biases = ("candidate_bias_D", "keep_bias_D", "input_bias_D", "forget_bias_D")
        weights = {name: getattr(self, name, None) for name in biases}
        return {
            f"matrix_{self._letters}ND": cast_before(matrix, dtype),
            **{name: bias[...] for name, bias in weights.items() if bias is not None},
        }

    def __call__(
        self,
        states_BSD: jax.Array,
        h: jax.Array | tuple[jax.Array, ...],
        weights: GateWeights | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        """Maps (B, S, D) states and inputs to the next states.

        Args:
            states_BSD: (B, S, D).
            h: (B, S, f_in), or as `axes` says; a tuple of arrays has a first axis of them.
            weights: `weights(dtype)` of h, computed before a loop; None: computed now.

        Returns:
            (B, S, D) in the states' type, and keep, broadcastable to the same shape.
        """
        weights = self.weights(jax.tree.leaves(h)[0].dtype) if weights is None else weights
        matrix = weights[f"matrix_{self._letters}ND"]
        projected_BSND = wide(product(f"{self.axes},{self._letters}ND->BSND", h, matrix))
        z_BSD = projected_BSND[:, :, 0]
        if self.candidate_bias_D is not None:
            z_BSD = z_BSD + in_loop(weights["candidate_bias_D"])
        if self.squash:
            z_BSD = jnp.tanh(z_BSD)
        if self.kind == "fixed":
            keep = jax.nn.sigmoid(in_loop(weights["keep_bias_D"]))
            take = 1.0 - keep
        else:
            input_BSD = projected_BSND[:, :, 1] + in_loop(weights["input_bias_D"])
            forget_BSD = projected_BSND[:, :, 2] + in_loop(weights["forget_bias_D"])
            keep = jax.nn.sigmoid(forget_BSD + self.constant)
            take = jax.nn.sigmoid(input_BSD - self.constant)
        return states_BSD * keep + z_BSD * take, keep
