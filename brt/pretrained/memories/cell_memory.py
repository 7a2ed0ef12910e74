"""The Block-Recurrent cell between windows of a pretrained body.

At one layer the tokens also attend to state vectors, which read the window's tokens when it is
full. What the tokens read of them goes through an output matrix that begins at zero, so the model
begins as the pretrained one. Letters as in `brt.pretrained`; S states.

Source: Block-Recurrent, sections 3.1-3.5, whose block is a window here: its positions restart, so
keys of the window before are not seen.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.nn.initializers import ones, zeros
from jax.typing import DTypeLike

from brt.checks import Index, configurable
from brt.models.block_recurrent.cell import RecurrentCell, StateCache
from brt.models.block_recurrent.memory import BlockPairs
from brt.models.counts import matrix_size
from brt.models.layers.attention import attend
from brt.models.layers.initializers import DENSE, parameter
from brt.models.layers.norms import unit_heads
from brt.pretrained.backbone import PretrainedBackbone
from brt.pretrained.backbone_layer import LayerKeys
from brt.pretrained.memories.window_memory import WindowMemory


class StateKeys(NamedTuple):
    """Keys (unit length) and values of the states, (B, S, H, K), computed once a window."""

    keys_BSHK: jax.Array
    values_BSHK: jax.Array


@configurable(denylist=["rngs", "body"])
class CellMemory(WindowMemory):
    """State vectors that the tokens of a layer attend to, and that read its tokens.

    Args:
        layer: the layer with states, counted from 1; None: at two thirds of the depth.
        cell: builds the `RecurrentCell`; gin configures the default.

    Raises:
        ValueError: a layer that the body does not have.
    """

    name = "cell"

    def __init__(
        self,
        rngs: nnx.Rngs,
        body: PretrainedBackbone,
        layer: Index | None = None,
        cell: Callable[..., RecurrentCell] = RecurrentCell,
    ):
        num_layers = len(body.layers)
        if layer is not None and not 1 <= layer <= num_layers:
            raise ValueError(
                f"CellMemory.layer = {layer} must lie between 1 and {num_layers}, the layers of "
                f"{type(body).__name__}."
            )
        sizes = body.sizes
        self.sizes = sizes
        self.layer = layer or max(round(num_layers * 2 / 3), 1)
        self.cell = cell(rngs, sizes, body.num_positions)
        self.cross_queries_DA = parameter(rngs, DENSE, sizes.width, sizes.attention_size)
        self.cross_scale_H = parameter(rngs, ones, sizes.num_heads)
        self.cross_output_AD = parameter(rngs, zeros, sizes.attention_size, sizes.width)

    def init_cache(self, rows: int, dtype: DTypeLike) -> StateCache:
        return self.cell.init_cache(rows, dtype)

    def view(self, cache: StateCache, dtype: DTypeLike) -> StateKeys:
        states = self.cell.states(cache, dtype, self.cell.prepare(dtype))
        return StateKeys(*(x_BGSHK[:, 0] for x_BGSHK in states))

    def added(self, view: StateKeys, layer: int, normed_BTD: jax.Array) -> jax.Array | None:
        if layer != self.layer - 1:
            return None
        return self.read_states(normed_BTD, view)

    def read_states(self, normed_BTD: jax.Array, states: StateKeys) -> jax.Array:
        """Returns what tokens, (B, T, D), read of states, through the output matrix."""
        dtype = normed_BTD.dtype
        q_BTA = normed_BTD @ self.cross_queries_DA[...].astype(dtype)
        q_BTHK = unit_heads(q_BTA.reshape(*q_BTA.shape[:2], self.sizes.num_heads, -1))
        read_BTHK = attend(q_BTHK, *states, self.cross_scale_H[...])
        return read_BTHK.reshape(q_BTA.shape) @ self.cross_output_AD[...].astype(dtype)

    def token_pairs(self, keys: LayerKeys) -> tuple[jax.Array, jax.Array]:
        """Returns keys of unit length and values as the cell reads them, one of each head."""
        each = self.sizes.num_heads // keys.keys_BJGK.shape[2]
        k_BJHK, v_BJHK = (jnp.repeat(x, each, axis=2) for x in keys)
        return unit_heads(k_BJHK), v_BJHK

    def update(
        self, cache: StateCache, summary: Any, keys: Sequence[LayerKeys]
    ) -> tuple[StateCache, dict[str, jax.Array]]:
        """Returns the states after a window; as `WindowMemory.update`.

        Its monitors are kept, the mean share of the states that the gates keep; state_norm, their
        root mean square; and cross_output_norm, that of the matrix that began at zero.
        """
        pairs = BlockPairs(*(x[:, None] for x in self.token_pairs(keys[self.layer - 1])))
        dtype = pairs.keys_BGJHK.dtype
        weights = self.cell.prepare(dtype)
        states = self.cell.states(cache, dtype, weights)
        _, cache, _, monitors = self.cell(cache, None, pairs, None, weights, states)
        monitors = monitors | {"cross_output_norm": self.output_norm()}
        return cache, jax.lax.stop_gradient(monitors)

    def output_norm(self) -> jax.Array:
        """Returns the root mean square of the matrix that begins at zero."""
        return jnp.sqrt(jnp.mean(jnp.square(self.cross_output_AD[...])))

    def flops_per_window(self, window: int) -> float:
        S, A = self.cell.num_states, self.sizes.attention_size
        return 2 * S * matrix_size(self.cell) + 4 * A * S * (S + window)

    def flops_per_position(self) -> float:
        products = 2 * (self.cross_queries_DA.size + self.cross_output_AD.size)
        return products + 4 * self.sizes.attention_size * self.cell.num_states
