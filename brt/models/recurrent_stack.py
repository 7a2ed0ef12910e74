"""A stack of token-by-token recurrent layers as a language model: what LSTM and QRNN share.

The baselines that RECL compares Transformer-XL with (its section 4.3). A layer reads a segment of
any length at once, and its memory is the same in the middle of a segment as at the end; so the
period is one token, and decoding is a segment of one token.
"""

import itertools
import math

import gin
import jax
import jax.numpy as jnp
from flax import nnx

from brt.models.caches import select_rows
from brt.models.dropout import dropout
from brt.models.embedding import embedded
from brt.models.initializers import normal, parameter
from brt.models.language_model import DTYPES
from brt.models.model import Model
from brt.models.norms import wide
from brt.models.shape_letters import constrain


class RecurrentStack(Model):
    """Embed, layers one above the other, logits from the embedding table.

    A network names its `layer`, which is built from `rngs`, the size of its input and its units.

    Args:
        vocabulary_size, width: V, D of the embedding; the highest layer has D units too.
        num_layers, hidden_size: layers, and the units of all but the highest.
        dropout: rate after the embedding and after each layer.
        activation_dtype: "float32" or "bfloat16"; parameters stay float32.

    Raises:
        ValueError: no layers, an unknown type or a rate out of range.
    """

    layer = None
    period = 1

    def __init__(
        self,
        rngs: nnx.Rngs,
        vocabulary_size: int = gin.REQUIRED,
        width: int = gin.REQUIRED,
        num_layers: int = gin.REQUIRED,
        hidden_size: int = gin.REQUIRED,
        dropout: float = 0.0,
        activation_dtype: str = "float32",
    ):
        name = type(self).__name__
        if activation_dtype not in DTYPES:
            raise ValueError(
                f"{name}.activation_dtype = {activation_dtype!r}: choose one of {DTYPES}."
            )
        if min(num_layers, width, hidden_size) < 1 or not 0 <= dropout < 1:
            raise ValueError(
                f"{name}.num_layers = {num_layers}, {name}.width = {width} and "
                f"{name}.hidden_size = {hidden_size} must be at least 1, and {name}.dropout = "
                f"{dropout} at least 0 and below 1."
            )
        self.vocabulary_size, self.dropout = vocabulary_size, dropout
        self.dtype = jnp.dtype(activation_dtype)
        self.embedding_VD = parameter(rngs, normal(1.0), vocabulary_size, width)
        self.begin_D = parameter(rngs, normal(1.0), width)
        self.bias_V = parameter(rngs, jax.nn.initializers.zeros, vocabulary_size)
        sizes = [width, *[hidden_size] * (num_layers - 1), width]
        self.layers = nnx.List(
            self.layer(rngs, inputs, units) for inputs, units in itertools.pairwise(sizes)
        )

    def init_caches(self, rows: int):
        """Zeros, one cache a layer."""
        return tuple(layer.init_cache(rows, self.dtype) for layer in self.layers)

    def embed(self, tokens_BT):
        return embedded(tokens_BT, self.embedding_VD[...], self.begin_D[...], self.dtype)

    def stack(self, x_BTD, caches, key=None):
        """A segment of any length; no monitors. As `Model.stack`."""
        keys = [None] * (len(self.layers) + 1)
        if key is not None and self.dropout:
            keys = list(jax.random.split(key, len(keys)))
        x_BTD, new_caches = dropout(x_BTD, self.dropout, keys[0]), []
        for layer, cache, layer_key in zip(self.layers, caches, keys[1:], strict=True):
            x_BTD, cache = layer(x_BTD, cache)
            x_BTD = dropout(x_BTD, self.dropout, layer_key)
            new_caches.append(cache)
        return x_BTD, tuple(new_caches), {}

    def logits(self, x_BTD):
        x_BTD = constrain(x_BTD, "BTD") if x_BTD.ndim == 3 else x_BTD
        return wide(x_BTD @ self.embedding_VD[...].astype(self.dtype).T) + self.bias_V[...]

    def begin_decoding(self, caches):
        """The caches: every token ends a segment."""
        return caches

    end_decoding = begin_decoding

    def decode(self, tokens_B, caches, reads_B=True):
        """A segment of one token; as `Model.decode`."""
        logits_BTV, after = self(tokens_B[:, None], caches)
        if reads_B is not True:
            after = select_rows(reads_B, after, caches)
        return logits_BTV[:, 0], after

    def read_part(self, tokens_BT, caches, counts_B):
        """Nothing is less than one token: the caches as they are, and logits without meaning."""
        return self(tokens_BT, caches)[0], caches

    def windows_reach(self) -> int:
        """How many tokens back the layers' inputs are carried."""
        return sum(layer.window for layer in self.layers)

    def receptive_field(self) -> float:
        """Infinite: the state has seen everything."""
        return math.inf

    def flops_per_token(self) -> float:
        """As `Model.flops_per_token`."""
        leaves = jax.tree.leaves(nnx.state(self, nnx.Param))
        return 2.0 * sum(leaf.size for leaf in leaves if len(leaf.shape) == 2)

    def divided_sizes(self) -> dict[str, int]:
        return {f"{type(self).__name__}.vocabulary_size": self.vocabulary_size}
