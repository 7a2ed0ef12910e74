"""The quasi-recurrent language model: gates from convolutions, a recurrence of products and sums.

All matrix products are of whole segments; what runs from token to token is elementwise, and is
computed as an associative scan.
"""

from typing import NamedTuple

import gin
import jax
import jax.numpy as jnp
from flax import nnx

from brt.models.initializers import DENSE, parameter
from brt.models.norms import wide
from brt.models.recurrent_stack import RecurrentStack


class QRNNCache(NamedTuple):
    """What a layer remembers after a token. Empty: zeros.

    last_BI: (B, I), the layer's last input, for the convolution, in the activations' type.
    cell_BU: (B, U), float32 or wider.
    """

    last_BI: jax.Array
    cell_BU: jax.Array

    def clear_state(self, empty):
        return self._replace(cell_BU=empty.cell_BU)


class QRNNLayer(nnx.Module):
    """z = tanh, f = sigma, o = sigma of W_1 x_{t-1} + W_2 x_t + b; c' = f c + (1 - f) z; h = o c'.

    Args:
        inputs: I, the size of x.
        units: U, the size of c and h; Z = 3 U are z, f and o side by side.

    Source: Bradbury et al. 2017, arXiv:1611.01576, section 2: masked convolutions of width 2 and
    fo-pooling.
    """

    window = 1

    def __init__(self, rngs: nnx.Rngs, inputs: int, units: int):
        self.inputs_size, self.units = inputs, units
        self.earlier_IZ = parameter(rngs, DENSE, inputs, 3 * units)
        self.inputs_IZ = parameter(rngs, DENSE, inputs, 3 * units)
        self.bias_Z = parameter(rngs, jax.nn.initializers.zeros, 3 * units)

    def init_cache(self, rows: int, dtype) -> QRNNCache:
        last_BI = jnp.zeros((rows, self.inputs_size), dtype)
        return QRNNCache(last_BI, wide(jnp.zeros((rows, self.units), dtype)))

    def __call__(self, x_BTI, cache: QRNNCache):
        """(B, T, I) to (B, T, U), and the cache after the last token."""
        dtype = x_BTI.dtype
        earlier_BTI = jnp.concatenate([cache.last_BI[:, None], x_BTI[:, :-1]], axis=1)
        gates_BTZ = earlier_BTI @ self.earlier_IZ[...].astype(dtype)
        gates_BTZ += x_BTI @ self.inputs_IZ[...].astype(dtype)
        z_BTU, f_BTU, o_BTU = jnp.split(wide(gates_BTZ) + self.bias_Z[...], 3, axis=-1)
        f_BTU = jax.nn.sigmoid(f_BTU)
        cell_BTU = pooled(f_BTU, (1 - f_BTU) * jnp.tanh(z_BTU), cache.cell_BU)
        hidden_BTU = (jax.nn.sigmoid(o_BTU) * cell_BTU).astype(dtype)
        return hidden_BTU, QRNNCache(x_BTI[:, -1], cell_BTU[:, -1])


def pooled(keep_BTU, add_BTU, first_BU):
    """c_t = keep_t c_{t-1} + add_t from c_0 on, as an associative scan: (B, T, U)."""

    def join(before, after):
        return before[0] * after[0], after[0] * before[1] + after[1]

    kept_BTU, added_BTU = jax.lax.associative_scan(join, (keep_BTU, add_BTU), axis=1)
    return kept_BTU * first_BU[:, None] + added_BTU


@gin.configurable(denylist=["rngs"])
class QRNN(RecurrentStack):
    """See `RecurrentStack`; segments of any length."""

    layer = QRNNLayer
