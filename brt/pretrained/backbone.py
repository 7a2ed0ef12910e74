"""The contract of a pretrained body: a stack of layers that reads one window, and knows no memory.

docs/pretrained.md says what a new body has to offer. Letters as in
`brt.pretrained`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from brt.models.counts import matrix_size
from brt.models.layers.sizes import Sizes
from brt.pretrained.activations import ACTIVATIONS
from brt.pretrained.backbone_layer import LayerKeys
from brt.pretrained.folder import HubFolder
from brt.pretrained.names import Names
from brt.pretrained.source import open_folder, settle

REMATS = ("none", "layer")


class Reading(NamedTuple):
    """What a body makes of positions.

    outputs: of each layer, (B, T, D), the last one after the final norm. keys: of each layer.
    kept: of each layer, what `Reads.added` had to keep.
    """

    outputs: tuple[jax.Array, ...]
    keys: tuple[LayerKeys, ...]
    kept: tuple[Any, ...] = ()


class PretrainedBackbone(nnx.Module):
    """A transformer whose parameters may come from a folder: the base of all bodies.

    It is built as `body(rngs)`; its sizes are bound, or read from `Pretrained.folder`. A
    constructor calls `settle`, checks what it returns, calls `take`, draws the parameters, and
    ends in `check_folder`.

    Class attributes:
        model_types: `model_type` of the folders that it reads.
        defaults: of the settings that need not be bound, by name.

    Attributes:
        folder: the `HubFolder` its parameters come from, or None: they are random.
        vocabulary_size: V. width: D. sizes: of its layers.
        activation_name: of its own activation function, in `ACTIVATIONS`.
        epsilon: of the norms.
        layers: `BackboneLayer`s.
        num_positions: R, positions that a window may have; None for any number.
        dropout: of activations in training.
        dtype: of activations.
        remat: "none", or "layer" to recompute each layer in the backward pass.
    """

    model_types: ClassVar[tuple[str, ...]]
    defaults: ClassVar[Mapping[str, Any]]
    folder: HubFolder | None
    vocabulary_size: int
    width: int
    sizes: Sizes
    activation_name: str
    epsilon: float
    layers: nnx.List
    num_positions: int | None
    dropout: float
    dtype: np.dtype
    remat: str

    def settings_of(self, folder: HubFolder) -> dict[str, Any]:
        """Returns the settings that a folder's config.json says, by the names of bindings.

        Raises:
            ValueError: a value of another type, or that brt does not compute; naming the key.
        """
        raise NotImplementedError

    def settle(
        self,
        bound: Mapping[str, Any],
        *,
        dropout: float,
        activation_dtype: str,
        remat: str,
        folder: str | None,
    ) -> dict[str, Any]:
        """Takes over what every body is bound with, and returns the settings of its family.

        Sets `folder`, `dropout`, `dtype` and `remat`.

        Args:
            bound: settings of the family by name; None where nothing is bound.
            dropout: rate of activations in training.
            activation_dtype: of `DTYPES`.
            remat: of `REMATS`.
            folder: path of a folder, before `Pretrained.folder`; None for that.

        Raises:
            FileNotFoundError, ValueError: a bad value; a folder that is refused; a binding that is
                missing, or says something else than the folder.
        """
        name = type(self).__name__
        self.folder = open_folder(folder, name, self.model_types)
        self.dropout = dropout
        self.dtype = jnp.dtype(activation_dtype)
        self.remat = remat
        found = self.settings_of(self.folder) if self.folder else None
        return settle(name, bound, found, self.defaults, self.folder)

    def divided_width(self, said: Mapping[str, Any]) -> int:
        """Returns K = D / H of settings.

        Raises:
            ValueError: H does not divide D.
        """
        D = said["width"]
        H = said["num_heads"]
        if D % H:
            name = type(self).__name__
            raise ValueError(f"{name}.width = {D} is not divided by {name}.num_heads = {H}.")
        return D // H

    def take(self, said: Mapping[str, Any], sizes: Sizes, activation_name: str) -> None:
        """Takes over settings that every family has as attributes."""
        self.width = sizes.width
        self.sizes = sizes
        self.vocabulary_size = said["vocabulary_size"]
        self.epsilon = said["epsilon"]
        self.activation_name = activation_name

    def check_folder(self) -> None:
        """Refuses a folder whose tensors are not the body's parameters.

        Raises:
            ValueError: as `Names.check`.
        """
        if self.folder:
            self.names().check(self.folder, nnx.to_pure_dict(nnx.state(self, nnx.Param)))

    @property
    def activation(self) -> Callable[[jax.Array], jax.Array]:
        """The body's own activation function."""
        return ACTIVATIONS[self.activation_name]

    def names(self) -> Names:
        """Returns the table of its tensors on disk."""
        raise NotImplementedError

    def divided_sizes(self) -> dict[str, int]:
        """Returns the bindings whose sizes the model axis of a mesh must divide."""
        name = type(self).__name__
        return {
            f"{name}.num_heads": self.sizes.num_heads,
            f"{name}.feed_forward_size": self.sizes.feed_forward_size,
            f"{name}.vocabulary_size": self.vocabulary_size,
        }

    def config(self) -> dict[str, Any]:
        """Returns a config.json that says its settings: the folder's own, or a new one."""
        config = dict(self.folder.config) if self.folder else self.new_config()
        for key in ("dtype", "torch_dtype"):
            if key in config:
                config[key] = "float32"
        return config

    def new_config(self) -> dict[str, Any]:
        """Returns the config.json of a body that is of no folder."""
        raise NotImplementedError

    def dropout_keys(self, key: jax.Array | None) -> Sequence[jax.Array | None]:
        """Returns keys for what enters the first layer, and for each layer; None drops nothing."""
        count = len(self.layers) + 1
        if key is None or not self.dropout:
            return [None] * count
        return list(jax.random.split(key, count))

    def flops_of_layers(self, keys_seen: float) -> float:
        """Returns operations of one position in all layers, whose queries see so many keys."""
        A = self.sizes.attention_size
        return sum(2 * matrix_size(layer) + 4 * A * keys_seen for layer in self.layers)
