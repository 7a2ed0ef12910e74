"""A layer without attention: a memory that every token updates and reads, and the MLP."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from brt.checks import Count, Share, checked_arguments
from brt.models.axis_rules import constrain
from brt.models.block_recurrent.layer import Layer
from brt.models.block_recurrent.memory import LayerMemory, LayerTokens, TokenMemory
from brt.models.caches import select_rows
from brt.models.contract import check_memories, checked_result, empty_cache, joined_metrics
from brt.models.counts import matrix_size
from brt.models.layers.feed_forward import FeedForward
from brt.models.layers.norms import RMSNorm
from brt.models.model import Metrics
from brt.models.ops import dropped, repeated_mask
from brt.models.sizes import Sizes


class TokenLayer(nnx.Module):
    """x + memory(norm(x)), then the MLP with its residual.

    The cache is the memory's, in both forms: blocks have no meaning here. Arguments are those of
    `Layer`.
    """

    num_states = 0

    @checked_arguments
    def __init__(
        self,
        rngs: nnx.Rngs,
        sizes: Sizes,
        window: Count,
        dropout: Share,
        memory: TokenMemory,
    ):
        self.sizes, self.window, self.dropout = sizes, window, dropout
        self.memory_norm = RMSNorm(rngs, sizes.width)
        if sizes.feed_forward_size:
            self.feed_forward_norm = RMSNorm(rngs, sizes.width)
            self.feed_forward = FeedForward(rngs, sizes.width, sizes.feed_forward_size)
        check_memories((memory,), dir(self), LayerMemory)
        self.memory_names = (memory.name,)
        setattr(self, memory.name, memory)

    @property
    def memories(self) -> tuple[TokenMemory]:
        return (getattr(self, self.memory_names[0]),)

    def init_cache(self, rows: int, dtype: DTypeLike) -> Any:
        return empty_cache(self.memories[0], rows, dtype)

    def __call__(
        self,
        x_BTD: jax.Array,
        cache: Any,
        prepared: None = None,
        key: jax.Array | None = None,
        counts_B: jax.Array | None = None,
    ) -> tuple[jax.Array, Any, Metrics]:
        """Runs on any number T of tokens; arguments as in `Layer.__call__`."""
        (memory,), (_, T, D), keys = self.memories, x_BTD.shape, [None, None]
        if key is not None:
            keys = list(jax.random.split(key))
        masks = (repeated_mask(each, self.dropout, T, D, x_BTD.dtype) for each in keys)
        memory_mask_PD, mlp_mask_PD = masks
        normed_BTD = dropped(self.memory_norm(x_BTD), memory_mask_PD)
        nothing: Any = None  # no attention
        tokens = LayerTokens(normed_BTD, nothing, nothing, nothing, nothing, counts_B)
        with jax.named_scope("memory"):
            zeros_BTD = jnp.zeros_like(x_BTD)  # instead of attention
            y_BTD, after, metrics = memory.run(cache, tokens, zeros_BTD, tokens.real_BT())
        expected = x_BTD, cache
        (y_BTD, after), metrics = checked_result(memory, "run", expected, ((y_BTD, after), metrics))
        x_BTD = x_BTD + y_BTD
        with jax.named_scope("feed_forward"):
            if self.sizes.feed_forward_size:
                weights = self.feed_forward.weights(x_BTD.dtype)
                normed_BTD = self.feed_forward_norm(x_BTD)
                x_BTD = x_BTD + self.feed_forward(normed_BTD, None, weights, mlp_mask_PD)
        return constrain(x_BTD, "BTD"), after, joined_metrics({}, memory.name, metrics)

    def decode(
        self, x_BD: jax.Array, cache: Any, reads_B: jax.Array | bool
    ) -> tuple[jax.Array, Any]:
        x_B1D, after, _ = self(x_BD[:, None], cache)
        return x_B1D[:, 0], select_rows(jnp.broadcast_to(reads_B, x_BD.shape[:1]), after, cache)

    def flops_per_token(self, feedback_size: int = 0) -> float:
        (memory,) = self.memories
        return 2 * matrix_size(self, (memory.name,)) + memory.flops_per_token(self.window)


def layer_with(
    rngs: nnx.Rngs,
    sizes: Sizes,
    window: int,
    dropout: float,
    memories: Sequence[LayerMemory],
    reads_states: bool,
) -> Layer | TokenLayer:
    """Returns a `Layer`, or a `TokenLayer` for a memory that replaces attention.

    Raises:
        ValueError: such a memory is not alone in its layer, or the layer must attend to states.
    """
    alone = [memory for memory in memories if memory.replaces_attention]
    if not alone:
        return Layer(rngs, sizes, window, dropout, tuple(memories), reads_states)
    name = type(alone[0]).__name__
    if len(memories) > 1:
        others = ", ".join(type(memory).__name__ for memory in memories if memory is not alone[0])
        raise ValueError(
            f"{name} replaces the attention that {others} of the same layer would need: bind the "
            "memories to different layers."
        )
    if reads_states:
        raise ValueError(
            "BlockRecurrentTransformer.feedback = True lets every layer attend to states, and "
            f"a layer of {name} has no attention: bind feedback = False."
        )
    if not isinstance(alone[0], TokenMemory):
        raise TypeError(f"{name}.replaces_attention = True needs a TokenMemory: define run.")
    return TokenLayer(rngs, sizes, window, dropout, alone[0])
