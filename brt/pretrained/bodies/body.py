"""The contract of a pretrained body: a stack of layers that reads one window, and knows no memory.

docs/pretrained.md says what a new body has to offer. Letters as in
`brt.pretrained`.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from brt.checks import check_choice, check_share
from brt.models.counts import matrix_size
from brt.models.layers.dropout import independent_dropout, keep_mask
from brt.models.layers.norms import wide
from brt.models.layers.sizes import Sizes
from brt.models.model import DTYPES
from brt.models.shape_letters import constrain
from brt.pretrained.bodies.activations import ACTIVATIONS
from brt.pretrained.bodies.layer import NOTHING, LayerKeys, Reads, Seen, drops, with_extras
from brt.pretrained.folder import HubFolder
from brt.pretrained.names import Names
from brt.pretrained.source import open_folder, settle
from brt.token_ids import BEGIN

REMATS = ("none", "layer")


class Reading(NamedTuple):
    """What a body makes of positions.

    outputs: of each layer, (B, T, D), the last one after the final norm. keys: of each layer.
    kept: of each layer, what `Reads.added` had to keep.
    """

    outputs: tuple[jax.Array, ...]
    keys: tuple[LayerKeys, ...]
    kept: tuple[Any, ...] = ()


class PretrainedBody(nnx.Module):
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
        layers: `BodyLayer`s.
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
        check_choice(f"{name}.activation_dtype", activation_dtype, DTYPES)
        check_choice(f"{name}.remat", remat, REMATS)
        check_share(f"{name}.dropout", dropout)
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


class Decoder(PretrainedBody):
    """A body that reads from left to right: the base of GPT-2, Llama and GPT-NeoX.

    Class attributes:
        relative: whether its attention depends on differences of positions only.

    Attributes:
        num_positions: R, a number.
        num_key_heads: G.
        begin_id: the row of the table that stands before a document's first token.
        embedding_VD: the table of words. tied: whether logits are products with it; else with
            head_VD.
        final_norm: of the last layer's outputs.
    """

    relative: ClassVar[bool] = False
    num_positions: int
    num_key_heads: int
    begin_id: int
    embedding_VD: nnx.Param
    head_VD: nnx.Param
    tied: bool
    final_norm: Callable[[jax.Array], jax.Array]

    def take_decoder(
        self, said: Mapping[str, Any], sizes: Sizes, activation_name: str, num_key_heads: int
    ) -> None:
        """Takes over settings that every decoder has as attributes.

        Raises:
            ValueError: the word before a document is none of the vocabulary.
        """
        self.take(said, sizes, activation_name)
        self.num_key_heads = num_key_heads
        self.num_positions = said["num_positions"]
        self.tied = said["tied"]
        begin_id = said["begin_id"]
        self.begin_id = self.vocabulary_size - 1 if begin_id is None else begin_id
        if not 0 <= self.begin_id < self.vocabulary_size:
            raise ValueError(
                f"{type(self).__name__}.begin_id = {begin_id} lies beyond the "
                f"{self.vocabulary_size} words."
            )

    def embed(self, tokens_BT: jax.Array) -> jax.Array:
        """Maps (B, T) ids to (B, T, D) vectors of words, without positions."""
        rows_BT = jnp.where(tokens_BT == BEGIN, self.begin_id, jnp.maximum(tokens_BT, 0))
        return constrain(self.embedding_VD[...].astype(self.dtype)[rows_BT], "BTD")

    def enter(self, x_BTD: jax.Array, positions_BT: jax.Array) -> jax.Array:
        """Returns what enters the first layer."""
        return x_BTD

    def leave(self, x_BTD: jax.Array) -> jax.Array:
        """Returns the last layer's outputs after the final norm."""
        return self.final_norm(x_BTD)

    @property
    def head(self) -> nnx.Param:
        """The matrix of the logits, (V, D)."""
        return self.embedding_VD if self.tied else self.head_VD

    def logits(self, x_BTD: jax.Array) -> jax.Array:
        """Maps (..., D) to (..., V), float32 or wider."""
        x_BTD = constrain(x_BTD, "BTD") if x_BTD.ndim == 3 else x_BTD
        table_VD = self.head[...].astype(x_BTD.dtype)
        return jnp.einsum(
            "...D,VD->...V", x_BTD, table_VD, preferred_element_type=wide(x_BTD).dtype
        )

    def read(
        self,
        x_BTD: jax.Array,
        positions_BT: jax.Array,
        seen: Callable[[int, LayerKeys], Seen],
        reads: Reads = NOTHING,
        key: jax.Array | None = None,
    ) -> Reading:
        """Reads positions through all layers.

        Args:
            x_BTD: (B, T, D), from `embed`, or vectors of memory.
            positions_BT: (B, T) int32.
            seen: from a layer's number and the keys of these positions in it to what the
                positions see there, besides the extra vectors of `reads`. With a multiple of B
                rows each row of queries is cut into as many blocks, which see keys of their own.
            reads: what memories add.
            key: dropout key or None.
        """
        keys = self.dropout_keys(key)
        with jax.named_scope("embedding"):
            x_BTD = self.enter(x_BTD, positions_BT)
            x_BTD = independent_dropout(x_BTD, self.dropout, keys[0])
        outputs = []
        own = []
        kept = []
        for i, (layer, layer_key) in enumerate(zip(self.layers, keys[1:], strict=True)):
            run: Callable[..., Any] = functools.partial(
                self._layer, i, layer, seen=seen, reads=reads
            )
            run = jax.checkpoint(run) if self.remat == "layer" else run
            with jax.named_scope(f"layer{i}"):
                x_BTD, layer_keys, layer_kept = run(x_BTD, positions_BT, key=layer_key)
            outputs.append(x_BTD)
            own.append(layer_keys)
            kept.append(layer_kept)
        outputs[-1] = self.leave(x_BTD)
        return Reading(tuple(outputs), tuple(own), tuple(kept))

    def _layer(self, i, layer, x_BTD, positions_BT, seen, reads, key):
        of_weights, of_outputs = (None, None) if key is None else jax.random.split(key)
        with jax.named_scope("attention"):
            heads = layer.heads(x_BTD)
            found = with_extras(layer, seen(i, heads.keys), i, reads)
            blocks, J = found.positions_BJ.shape
            q_BTHK = heads.queries_BTHK
            # A row's queries in several blocks, each of which sees keys of its own.
            q_GTHK = q_BTHK.reshape(blocks, -1, *q_BTHK.shape[2:])
            positions_GT = positions_BT.reshape(q_GTHK.shape[:2])
            shape = layer.sizes.num_heads, q_GTHK.shape[1], J
            keep_HTJ = keep_mask(of_weights, self.dropout, shape, jnp.float32)
            attended = layer.attend(q_GTHK, positions_GT, found, keep_HTJ).reshape(q_BTHK.shape)
        with jax.named_scope("memory"):
            added_BTD, kept = reads.added(i, heads)
        drop = drops(of_outputs, self.dropout)
        return layer.finish(x_BTD, heads, attended, added_BTD, drop), heads.keys, kept
