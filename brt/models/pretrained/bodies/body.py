"""The contract of a pretrained body: what reads one window, and knows no memory.

A body is a stack of layers. What a memory adds to a layer comes in from outside, as `Reads`:
vectors that stand among a layer's inputs for keys and values only, and an addition to what its
attention puts out. README.md beside this file says what a new body has to offer. Letters as in
`brt.models.pretrained`.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from brt.models.counts import matrix_size
from brt.models.layers.attention import attend
from brt.models.layers.dropout import independent_dropout, keep_mask
from brt.models.layers.norms import LayerNorm, wide
from brt.models.layers.sizes import Sizes
from brt.models.pretrained.folder import HubFolder
from brt.models.pretrained.names import Names
from brt.models.shape_letters import constrain
from brt.token_ids import BEGIN

REMATS = ("none", "layer")
HIDDEN = -1e30
"""Added to the score of a key that a query does not see: its weight is 0."""


class LayerKeys(NamedTuple):
    """Keys and values of vectors in one layer, (B, J, G, K). Rotary keys are not rotated yet."""

    keys_BJGK: jax.Array
    values_BJGK: jax.Array


class Extra(NamedTuple):
    """Vectors among a layer's inputs for keys and values only; they have no position.

    vectors_BMD: (B, M, D), before the layer's first norm. present_BM: bool, those that are there.
    """

    vectors_BMD: jax.Array
    present_BM: jax.Array


class Seen(NamedTuple):
    """What the queries of a layer may attend to.

    keys: `LayerKeys` of J vectors. positions_BJ: int32, their positions. table_BQJ: float, added to
        the scores: 0, or `HIDDEN`; axes of rows and queries may be 1.
    """

    keys: LayerKeys
    positions_BJ: jax.Array
    table_BQJ: jax.Array


class Heads(NamedTuple):
    """Queries (B, T, H, K) of a layer, keys and values (B, T, G, K), and what they are made of.

    normed_BTD: the layer's inputs as its matrices are multiplied with them.
    """

    queries_BTHK: jax.Array
    keys: LayerKeys
    normed_BTD: jax.Array


class Reading(NamedTuple):
    """What a body makes of positions.

    outputs: of each layer, (B, T, D), the last one after the final norm. keys: of each layer.
    kept: of each layer, what `Reads.added` had to keep.
    """

    outputs: tuple[jax.Array, ...]
    keys: tuple[LayerKeys, ...]
    kept: tuple[Any, ...] = ()


class Reads:
    """What memories add to the layers of a window; this one adds nothing."""

    def extras(self, layer: int) -> Sequence[Extra]:
        """Returns vectors for the keys and values of a layer, counted from 0."""
        return ()

    def extra_keys(self, layer: int) -> LayerKeys | None:
        """Returns keys and values of the layer's extra vectors, if they are computed already."""
        return None

    def added(self, layer: int, heads: Heads) -> tuple[jax.Array | None, Any]:
        """Returns what is added to the output of a layer's attention, (B, T, D), or None.

        And arrays that the reader of the window gets back, in any nesting.
        """
        return None, ()


NOTHING = Reads()


class Norm(LayerNorm):
    """`LayerNorm` with an epsilon of its own."""

    def __init__(self, rngs: nnx.Rngs, width: int, epsilon: float):
        super().__init__(rngs, width)
        self.epsilon = epsilon


def linear(x_BTD: jax.Array, matrix_DA: nnx.Param, bias_A: nnx.Param | None = None) -> jax.Array:
    """Returns x matrix + bias, in the type of x."""
    y_BTA = x_BTD @ matrix_DA[...].astype(x_BTD.dtype)
    return y_BTA if bias_A is None else y_BTA + bias_A[...].astype(x_BTD.dtype)


Drop = Callable[[jax.Array], jax.Array]
"""Dropout with its key, or the identity."""


class BodyLayer(nnx.Module):
    """One layer of a body: the base of all.

    Attributes:
        sizes: D, H, K, F.
        score_scale: factor of the scores.
    """

    sizes: Sizes
    score_scale: float

    def heads(self, x_BTD: jax.Array) -> Heads:
        """Returns queries, keys and values of the layer's inputs, (B, T, D)."""
        raise NotImplementedError

    def finish(
        self,
        x_BTD: jax.Array,
        heads: Heads,
        attended_BTHK: jax.Array,
        added_BTD: jax.Array | None = None,
        drop: Drop | None = None,
    ) -> jax.Array:
        """Returns the layer's outputs, (B, T, D).

        Args:
            x_BTD: its inputs.
            heads: of `heads(x_BTD)`.
            attended_BTHK: what attention read.
            added_BTD: added to the output of the attention, before its residual.
            drop: dropout of what enters the residual stream, or None.
        """
        raise NotImplementedError

    def attend(
        self,
        queries_BTHK: jax.Array,
        positions_BT: jax.Array,
        seen: Seen,
        keep_HTJ: jax.Array | None = None,
    ) -> jax.Array:
        """Returns what queries at these positions read of what they see, (B, T, H, K).

        keep_HTJ: multiplies the weights (dropout), or None.
        """
        queries_BTHK, keys = self.placed(queries_BTHK, positions_BT, seen)
        H = queries_BTHK.shape[2]
        each = H // keys.keys_BJGK.shape[2]
        k_BJHK, v_BJHK = (jnp.repeat(x, each, axis=2) if each > 1 else x for x in keys)
        scale_H = jnp.full(H, self.score_scale, wide(queries_BTHK).dtype)
        table_BHTJ = seen.table_BQJ[:, None]
        return attend(queries_BTHK, k_BJHK, v_BJHK, scale_H, table_BHTJ, keep_HTJ)

    def placed(
        self, queries_BTHK: jax.Array, positions_BT: jax.Array, seen: Seen
    ) -> tuple[jax.Array, LayerKeys]:
        """Returns queries and keys with their positions in them: rotated, for one."""
        return queries_BTHK, seen.keys


class PretrainedBody(nnx.Module):
    """A transformer whose parameters may come from a folder: the base of all bodies.

    It is built as `body(rngs)`; its sizes are bound, or read from `Pretrained.folder`.

    Class attributes:
        model_types: `model_type` of the folders that it reads.

    Attributes:
        folder: the `HubFolder` its parameters come from, or None: they are random.
        vocabulary_size: V. width: D. sizes: of its layers.
        layers: `BodyLayer`s.
        num_positions: R, positions that a window may have; None for any number.
        dropout: of activations in training.
        dtype: of activations.
    """

    model_types: ClassVar[tuple[str, ...]]
    folder: HubFolder | None
    vocabulary_size: int
    width: int
    sizes: Sizes
    layers: nnx.List
    num_positions: int | None
    dropout: float
    dtype: np.dtype

    @property
    def activation(self) -> Callable[[jax.Array], jax.Array]:
        """The body's own activation function."""
        raise NotImplementedError

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
        raise NotImplementedError


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
        remat: "none", or "layer" to recompute each layer in the backward pass.
    """

    relative: ClassVar[bool] = False
    num_positions: int
    num_key_heads: int
    begin_id: int
    embedding_VD: nnx.Param
    head_VD: nnx.Param
    tied: bool
    remat: str

    def embed(self, tokens_BT: jax.Array) -> jax.Array:
        """Maps (B, T) ids to (B, T, D) vectors of words, without positions."""
        rows_BT = jnp.where(tokens_BT == BEGIN, self.begin_id, jnp.maximum(tokens_BT, 0))
        return constrain(self.embedding_VD[...].astype(self.dtype)[rows_BT], "BTD")

    def enter(self, x_BTD: jax.Array, positions_BT: jax.Array) -> jax.Array:
        """Returns what enters the first layer."""
        return x_BTD

    def leave(self, x_BTD: jax.Array) -> jax.Array:
        """Returns the last layer's outputs after the final norm."""
        raise NotImplementedError

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
        keys = [None] * (len(self.layers) + 1)
        if key is not None and self.dropout:
            keys = list(jax.random.split(key, len(keys)))
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
        drop = None if key is None else drops(of_outputs, self.dropout)
        return layer.finish(x_BTD, heads, attended, added_BTD, drop), heads.keys, kept

    def flops_of_layers(self, keys_seen: float) -> float:
        """Returns operations of one position in all layers, whose queries see so many keys."""
        A = self.sizes.attention_size
        return sum(2 * matrix_size(layer) + 4 * A * keys_seen for layer in self.layers)


def drops(key, rate):
    """Returns dropout that takes another key each time it is called."""
    count = iter(range(1000))

    def drop(x_BTD):
        return independent_dropout(x_BTD, rate, jax.random.fold_in(key, next(count)))

    return drop


def with_extras(layer: BodyLayer, seen: Seen, number: int, reads: Reads) -> Seen:
    """Returns what a layer's queries see with the extra vectors of memories in front."""
    extras = reads.extras(number)
    if not extras:
        return seen
    known = reads.extra_keys(number)
    if known is None:
        known = extra_keys(layer, extras)
    present_BM = jnp.concatenate([extra.present_BM for extra in extras], axis=1)
    table_BQJ = seen.table_BQJ
    hidden_B1M = jnp.where(present_BM, 0.0, HIDDEN).astype(table_BQJ.dtype)[:, None]
    rows = max(len(table_BQJ), len(present_BM))
    tables = (
        jnp.broadcast_to(table, (rows, table_BQJ.shape[1], table.shape[2]))
        for table in (hidden_B1M, table_BQJ)
    )
    nowhere_BM = jnp.zeros(present_BM.shape, seen.positions_BJ.dtype)
    pairs = zip(known, seen.keys, strict=True)
    return Seen(
        LayerKeys(*(jnp.concatenate(pair, axis=1) for pair in pairs)),
        jnp.concatenate([nowhere_BM, seen.positions_BJ], axis=1),
        jnp.concatenate(list(tables), axis=2),
    )


def extra_keys(layer: BodyLayer, extras: Sequence[Extra]) -> LayerKeys:
    """Returns keys and values of extra vectors in a layer, (B, M, G, K)."""
    vectors_BMD = jnp.concatenate([extra.vectors_BMD for extra in extras], axis=1)
    return layer.heads(vectors_BMD).keys


def attention_scale(head_size: int) -> float:
    """Returns 1 / sqrt(K)."""
    return 1 / math.sqrt(head_size)
