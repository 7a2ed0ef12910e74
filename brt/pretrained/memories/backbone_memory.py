"""A layer memory in one layer of a pretrained backbone: its blocks are the windows.

Positions restart in every window, so a memory is shown queries and keys without positions, and no
keys of the window before. Axes as in `brt.pretrained`; S states.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gin
import jax
import jax.numpy as jnp
from flax import nnx
from jax.nn.initializers import ones, zeros
from jax.typing import DTypeLike

from brt.checks import Index, configurable
from brt.models.block_recurrent.memory import LayerMemory, LayerTokens
from brt.models.layers.attention import attend
from brt.models.layers.initializers import DENSE, parameter
from brt.models.layers.norms import unit_heads
from brt.pretrained.backbone import PretrainedBackbone
from brt.pretrained.backbone_layer import Heads, LayerKeys
from brt.pretrained.memories.window_memory import WindowMemory


class StateKeys(NamedTuple):
    """Keys (unit length) and values of the states, (B, S, H, K), computed once a window."""

    keys_BSHK: jax.Array
    values_BSHK: jax.Array


class LayerView(NamedTuple):
    """What the tokens of a window read: the memory's cache, and keys and values of its states."""

    cache: Any
    states: StateKeys | None


@configurable(denylist=["rngs", "body"])
class BackboneMemory(WindowMemory):
    """A `LayerMemory` at one layer of a backbone, updated after each window.

    What the tokens attend to of its states goes through an output matrix that begins at zero, so
    that the model begins as the pretrained one.

    Args:
        memory: builds the memory, as for a layer of the Block-Recurrent stack.
        layer: the layer, counted from 0, or negative from the last.
    """

    def __init__(
        self,
        rngs: nnx.Rngs,
        body: PretrainedBackbone,
        memory: Callable[..., LayerMemory] = gin.REQUIRED,
        layer: Index = -1,
    ):
        num_layers = len(body.layers)
        if not -num_layers <= layer < num_layers:
            raise ValueError(
                f"BackboneMemory.layer = {layer} does not exist: {type(body).__name__} has "
                f"{num_layers} layers; use 0 ... {num_layers - 1}."
            )
        self.memory = memory(rngs, body.sizes, body.num_positions)
        if self.memory.moves_in_blocks:
            raise ValueError(
                f"BackboneMemory.memory = {type(self.memory).__name__} changes with every token; "
                "a backbone's memories change after a window."
            )
        self.name = self.memory.name
        self.attach(rngs, body, layer % num_layers, self.memory.num_states)

    def attach(self, rngs: nnx.Rngs, body: PretrainedBackbone, index: int, num_states: int) -> None:
        """Adds what the layer of this index, counted from 0, needs to attend to states."""
        sizes = body.sizes
        self.sizes = sizes
        self.index = index
        self.num_states = num_states
        if num_states:
            self.cross_queries_DA = parameter(rngs, DENSE, sizes.width, sizes.attention_size)
            self.cross_scale_H = parameter(rngs, ones, sizes.num_heads)
            self.cross_output_AD = parameter(rngs, zeros, sizes.attention_size, sizes.width)

    def init_cache(self, rows: int, dtype: DTypeLike) -> NamedTuple:
        return self.memory.init_cache(rows, dtype)

    def view(self, cache: Any, dtype: DTypeLike) -> Any:
        states = self.memory.states(cache, dtype, self.memory.prepare(dtype))
        keys = None if states is None else StateKeys(*(x_BGSHK[:, 0] for x_BGSHK in states))
        return LayerView(cache, keys)

    def attended(self, view: Any, layer: int, heads: Heads, attended_BTHK: jax.Array) -> jax.Array:
        if layer != self.index:
            return attended_BTHK
        k_BTHK, v_BTHK = self.token_keys(heads.keys)
        scale_H = jnp.ones(self.sizes.num_heads)
        q_BTHK = unit_heads(heads.queries_BTHK)
        tokens = LayerTokens(heads.normed_BTD, q_BTHK, k_BTHK, v_BTHK, scale_H)
        weights = self.memory.prepare(attended_BTHK.dtype)
        return self.memory.read(view.cache, tokens, attended_BTHK, weights)[0]

    def added(self, view: Any, layer: int, normed_BTD: jax.Array) -> jax.Array | None:
        if layer != self.index or view.states is None:
            return None
        return self.read_states(normed_BTD, view.states)

    def read_states(self, normed_BTD: jax.Array, states: StateKeys) -> jax.Array:
        """Returns attention of tokens, (B, T, D), to states, through the output matrix."""
        dtype = normed_BTD.dtype
        q_BTA = normed_BTD @ self.cross_queries_DA[...].astype(dtype)
        q_BTHK = unit_heads(q_BTA.reshape(*q_BTA.shape[:2], self.sizes.num_heads, -1))
        read_BTHK = attend(q_BTHK, *states, self.cross_scale_H[...])
        return read_BTHK.reshape(q_BTA.shape) @ self.cross_output_AD[...].astype(dtype)

    def token_keys(self, keys: LayerKeys) -> tuple[jax.Array, jax.Array]:
        """Returns keys of unit length, and values, (B, T, H, K): grouped ones are repeated."""
        each = self.sizes.num_heads // keys.keys_BJGK.shape[2]
        k_BJHK, v_BJHK = (jnp.repeat(x, each, axis=2) for x in keys)
        return unit_heads(k_BJHK), v_BJHK

    def update(
        self, cache: Any, summary: Any, keys: Sequence[LayerKeys]
    ) -> tuple[Any, dict[str, jax.Array]]:
        """Returns the cache after a window; as `WindowMemory.update`.

        A metric besides the memory's is cross_output_norm, the root mean square of the matrix that
        began at zero.
        """
        k_BTHK, v_BTHK = self.token_keys(keys[self.index])
        cache, metrics = self.memory.update(
            cache, k_BTHK, v_BTHK, self.memory.prepare(k_BTHK.dtype)
        )
        return cache, jax.lax.stop_gradient(metrics | self.output_norm())

    def output_norm(self) -> dict[str, jax.Array]:
        """Returns the metric of the matrix that began at zero, if there is one."""
        if not self.num_states:
            return {}
        return {"cross_output_norm": jnp.sqrt(jnp.mean(jnp.square(self.cross_output_AD[...])))}

    def flops_per_window(self, window: int) -> float:
        return window * self.memory.flops_per_token(window)

    def flops_per_position(self) -> float:
        if not self.num_states:
            return 0.0
        products = 2 * (self.cross_queries_DA.size + self.cross_output_AD.size)
        return products + 4 * self.sizes.attention_size * self.num_states
