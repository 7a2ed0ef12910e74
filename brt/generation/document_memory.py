"""The memory of documents as a value."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from brt.models.model import LanguageModel
from brt.token_ids import BEGIN


class Memory(NamedTuple):
    """The memory of B documents; its size does not depend on their lengths.

    The newest token is the model's next input: after n tokens it has had n inputs, `BEGIN` first.
    Caches move after every P inputs, the model's cache-update interval.

    caches: of the model, in decoding form.
    recent_BP: (B, P) int32, the last P tokens, newest last; `BEGIN` where there are fewer.
    position_B: (B,) int32, tokens of the document so far.
    """

    caches: Any
    recent_BP: jax.Array
    position_B: jax.Array

    @property
    def bytes(self) -> int:
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(self))


def fresh_memory(model: LanguageModel, rows: int) -> Memory:
    return Memory(
        model.begin_decoding(model.init_caches(rows)),
        jnp.full((rows, model.period), BEGIN, jnp.int32),
        jnp.zeros(rows, jnp.int32),
    )


def take_rows(memory: Memory, rows: Sequence[int] | np.ndarray) -> Memory:
    """Returns the memories of these documents, in this order; repetitions fork."""
    known = np.arange(len(memory.position_B))[np.asarray(rows)]  # JAX clamps unknown indices
    return jax.tree.map(lambda x: x[known], memory)
