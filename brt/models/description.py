"""What a model says about itself, for reports and for the checks of a config."""

from typing import Any

import jax
from flax import nnx

from brt.models.layerwise import Layerwise
from brt.models.sizes import Sizes


class ModelDescription(nnx.Module):
    """A part of `Model`: its methods describe the model and are not used to compute with it."""

    vocabulary_size: int

    def given_parameters(self) -> dict[str, Any]:
        """Returns initial parameters that are read from files, NumPy arrays by nested names."""
        return {}

    def check_vocabulary(self, vocabulary: Any, binding: str) -> None:
        """Refuses a `Vocabulary` with other ids than those the given parameters know.

        binding: that names the vocabulary, for the message.
        """

    def divided_sizes(self) -> dict[str, int]:
        """Returns the bindings whose sizes the model axis of a mesh must divide, with the sizes."""
        sizes: Sizes | None = getattr(self, "sizes", None)
        named = {"vocabulary_size": self.vocabulary_size}
        if sizes:
            of_layers = {"num_heads": sizes.num_heads, "feed_forward_size": sizes.feed_forward_size}
            named = of_layers | named
        return {f"{type(self).__name__}.{name}": size for name, size in named.items()}

    def gradient_metrics(self, grads: dict) -> dict[str, jax.Array]:
        """Returns scalars of a gradient, nested dictionaries as the parameters."""
        return {}

    def flops_per_token(self) -> float:
        """Returns the operations of one token's forward pass; a multiply-add counts as two."""
        raise NotImplementedError

    def layerwise(self) -> Layerwise | None:
        """Returns the model as layers that several segments can run at once; None if they cannot.

        It is of segments in evaluation and generation, without dropout.
        """
        return None

    def windows_reach(self) -> int:
        """Returns how many tokens back information is carried without a state or memory."""
        raise NotImplementedError

    def receptive_field(self) -> float:
        """Returns how many earlier tokens can influence a token; may be infinite."""
        raise NotImplementedError
