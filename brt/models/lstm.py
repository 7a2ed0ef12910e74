"""The LSTM language model: a state of every token's making, read and written token by token."""

from typing import NamedTuple

import gin
import jax
import jax.numpy as jnp
from flax import nnx

from brt.models.initializers import DENSE, parameter
from brt.models.norms import wide
from brt.models.recurrent_stack import RecurrentStack


class LSTMCache(NamedTuple):
    """What a layer remembers after a token. Empty: zeros.

    hidden_BU: (B, U), the layer's last output, in the activations' type.
    cell_BU: (B, U), float32 or wider: a long sum of small changes.
    """

    hidden_BU: jax.Array
    cell_BU: jax.Array

    def clear_state(self, empty):
        return empty


class LSTMLayer(nnx.Module):
    """i, f, o = sigma(W x + V h + b), g = tanh(same); c' = f c + i g; h' = o tanh(c').

    Args:
        inputs: I, the size of x.
        units: U, the size of h and c; Z = 4 U are the gates i, f, o and g side by side.

    Source: Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000, whose bias
    begins at 1 so that the cell keeps what it has.
    """

    window = 0

    def __init__(self, rngs: nnx.Rngs, inputs: int, units: int):
        self.units = units
        self.inputs_IZ = parameter(rngs, DENSE, inputs, 4 * units)
        self.hidden_UZ = parameter(rngs, DENSE, units, 4 * units)
        self.bias_Z = parameter(rngs, _forgets_little, 4 * units)

    def init_cache(self, rows: int, dtype) -> LSTMCache:
        cell_BU = wide(jnp.zeros((rows, self.units), dtype))
        return LSTMCache(cell_BU.astype(dtype), cell_BU)

    def __call__(self, x_BTI, cache: LSTMCache):
        """(B, T, I) to (B, T, U), and the cache after the last token."""
        dtype = x_BTI.dtype
        hidden_UZ, bias_Z = self.hidden_UZ[...].astype(dtype), self.bias_Z[...]
        given_BTZ = x_BTI @ self.inputs_IZ[...].astype(dtype)  # of all tokens at once

        def token(cache, given_BZ):
            gates_BZ = wide(given_BZ + cache.hidden_BU @ hidden_UZ) + bias_Z
            i_BU, f_BU, o_BU, g_BU = jnp.split(gates_BZ, 4, axis=-1)
            i_BU, f_BU, o_BU = map(jax.nn.sigmoid, (i_BU, f_BU, o_BU))
            cell_BU = f_BU * cache.cell_BU + i_BU * jnp.tanh(g_BU)
            hidden_BU = (o_BU * jnp.tanh(cell_BU)).astype(dtype)
            return LSTMCache(hidden_BU, cell_BU), hidden_BU

        cache, hidden_TBU = jax.lax.scan(token, cache, jnp.moveaxis(given_BTZ, 1, 0))
        return jnp.moveaxis(hidden_TBU, 0, 1), cache


def _forgets_little(key, shape, dtype):
    """Zeros, and 1 for the forget gate, the second quarter."""
    return jnp.repeat(jnp.array([0, 1, 0, 0], dtype), shape[0] // 4)


@gin.configurable(denylist=["rngs"])
class LSTM(RecurrentStack):
    """See `RecurrentStack`; segments of any length."""

    layer = LSTMLayer
