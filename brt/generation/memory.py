"""A document's memory as a value: everything a model knows of what it has read so far."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from brt.models.model import LanguageModel
from brt.token_ids import BEGIN


class Memory(NamedTuple):
    """Everything a model remembers of B documents. Its size does not depend on their lengths.

    A document's newest token is known but not yet read: it is the model's next input, as the
    last token of a segment is the first input of the next. So a document of n tokens has been
    read for n inputs, `BEGIN` first, and stands n % P tokens after the end of a period, where
    caches move (P is `model.period`, the window of most models).

    caches: the model's caches in decoding form, whatever they are.
    recent_BP: (B, P) int32, the last P tokens, newest last; `BEGIN` where there are fewer.
    position_B: (B,) int32, tokens of the document so far.
    """

    caches: Any
    recent_BP: jax.Array
    position_B: jax.Array

    @property
    def bytes(self) -> int:
        """Size in bytes."""
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(self))


def fresh_memory(model: LanguageModel, rows: int) -> Memory:
    """Returns the memory of documents that have not begun."""
    return Memory(
        model.begin_decoding(model.init_caches(rows)),
        jnp.full((rows, model.period), BEGIN, jnp.int32),
        jnp.zeros(rows, jnp.int32),
    )


def take_rows(memory: Memory, rows: Sequence[int] | np.ndarray) -> Memory:
    """Returns the memories of these rows, in this order; a row named twice is forked."""
    return jax.tree.map(lambda x: x[jnp.asarray(rows)], memory)
