"""Methods of a model for reports and for the checks of a config."""

from typing import Any

import jax
from flax import nnx

from brt.models.layerwise import Layerwise
from brt.models.sizes import Sizes


class ModelDescription(nnx.Module):
    """The part of `Model` that describes it and computes nothing."""

    vocabulary_size: int

    def given_parameters(self) -> dict[str, Any]:
        """Returns initial parameters read from files: NumPy arrays by nested names."""
        return {}

    def check_vocabulary(self, vocabulary: Any, binding: str) -> None:
        """Refuses a `Vocabulary` whose ids differ from those of the given parameters.

        binding: its binding, for the message.
        """

    def divided_sizes(self) -> dict[str, int]:
        """Returns the sizes that the model axis of a mesh must divide, by binding."""
        sizes: Sizes | None = getattr(self, "sizes", None)
        named = {"vocabulary_size": self.vocabulary_size}
        if sizes:
            of_layers = {"num_heads": sizes.num_heads, "feed_forward_size": sizes.feed_forward_size}
            named = of_layers | named
        return {f"{type(self).__name__}.{name}": size for name, size in named.items()}

    def gradient_metrics(self, grads: dict) -> dict[str, jax.Array]:
        """Returns scalars of a gradient, which has the structure of the parameters."""
        return {}

    def flops_per_token(self) -> float:
        """Returns the operations of one token's forward pass; a multiply-add counts as two."""
        raise NotImplementedError

    def layerwise(self) -> Layerwise | None:
        """Returns the layers for a schedule that runs several segments at once, or None.

        For evaluation and generation, without dropout.
        """
        return None

    def windows_reach(self) -> int:
        """Returns how many tokens back information is carried without a state or memory."""
        raise NotImplementedError
