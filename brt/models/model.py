"""The contract of a model: what training, evaluation and generation ask of it.

`Model` says what every model offers, segment by segment. `LanguageModel` says what a model that
writes text offers besides, token by token. docs/extending.md has a runnable example.
"""

from typing import Any, Generic, Self, TypeVar

import jax
import numpy as np
from flax import nnx

from brt.models.layers.losses import token_losses

DTYPES = ("float32", "bfloat16")
"""Types of activations."""
Embedded = TypeVar("Embedded")
"""What a model makes of the tokens of a segment before it reads them."""
Outputs = TypeVar("Outputs")
"""What it has made of them in the end."""


Monitors = dict[str, jax.Array]
"""Scalars that a model reports, by name."""


def check_scalars(monitors: Monitors, owner: str) -> None:
    """Refuses monitors that are no scalars, which would be averaged over all that they hold.

    Args:
        monitors: by name.
        owner: what reports them, for errors.
    """
    for name, value in monitors.items():
        if np.shape(value):
            raise ValueError(
                f"{owner} reports the monitor {name} of shape {np.shape(value)}: report a scalar, "
                "such as its mean."
            )


class Model(nnx.Module, Generic[Embedded, Outputs]):
    """A model that reads segments: the base of all models.

    `Embedded` and `Outputs` are arrays (B, T, D) of a `LanguageModel`. Of another model they are
    what it likes, arrays in any nesting; nobody else looks into them.

    A model holds parameters only; what it remembers between segments is a tuple of named tuples
    that goes in and comes out (`brt/models/caches.py` says what such a tuple must offer).

    Attributes:
        vocabulary_size: V, ids that may be read and predicted.
        dropout: 0 if the model never drops anything; else it is given keys in training.
        dtype: of activations.

    A model whose attention can be drawn is a `brt.models.attention_weights.ShowsAttention` besides.
    """

    vocabulary_size: int
    dropout: float
    dtype: np.dtype

    def for_segments(self, length: int) -> Self:
        """Returns the same model, same parameters, for segments of `length` tokens."""
        return self

    def init_caches(self, rows: int) -> tuple:
        """Returns the caches of `rows` documents that have not begun: what "empty" means."""
        raise NotImplementedError

    def embed(self, tokens_BT: jax.Array) -> Embedded:
        """Maps (B, T) ids, `BEGIN` before a document's first token, to (B, T, D) activations."""
        raise NotImplementedError

    def stack(
        self, x_BTD: Embedded, caches: tuple, key: jax.Array | None = None
    ) -> tuple[Outputs, tuple, dict[str, jax.Array]]:
        """Reads embedded tokens of one segment through all layers.

        Args:
            x_BTD: (B, T, D) activations.
            caches: from `init_caches` or the last segment.
            key: dropout key; None turns dropout off.

        Returns:
            (B, T, D), the caches after the segment, and a dict of scalar monitors. The monitor
            `added_nats`, if there is one, is added to the loss that is trained on, and to nothing
            that is reported as a loss.
        """
        raise NotImplementedError

    def logits(self, x_BTD: Outputs) -> jax.Array:
        """Maps (..., D) outputs of the stack to (..., V) logits or log-probabilities, float32 or
        wider."""
        raise NotImplementedError

    def token_losses(self, x_BTD: Outputs, targets_BT: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns -log p of each target in nats, and whether it is the most likely; both (B, T)."""
        return token_losses(self.logits(x_BTD), targets_BT)

    def __call__(
        self, tokens_BT: jax.Array, caches: tuple, key: jax.Array | None = None
    ) -> tuple[jax.Array, tuple]:
        """Reads one segment of every row.

        Args:
            tokens_BT: (B, T) int32 ids as read; the target of each is the next token.
            caches: from `init_caches(B)` or the segment before.
            key: dropout key or None.

        Returns:
            (B, T, V) logits and the caches after the segment.
        """
        with jax.named_scope("embedding"):
            x_BTD = self.embed(tokens_BT)
        y_BTD, caches, _ = self.stack(x_BTD, caches, key)
        with jax.named_scope("vocabulary"):
            return self.logits(y_BTD), caches

    def gradient_monitors(self, grads: dict) -> dict[str, jax.Array]:
        """Returns scalars of a gradient to be reported, such as the norm that reaches a memory.

        grads: nested dictionary of arrays, with the names of the parameters.
        """
        return {}

    def given_parameters(self) -> dict[str, Any]:
        """Returns parameters that a run begins with instead of random ones; read from files.

        A nested dictionary of NumPy arrays, with the names of the parameters; {} for none.
        """
        return {}

    def flops_per_token(self) -> float:
        """Returns floating-point operations of one token's forward pass, a product and a sum as
        two.

        Matrix products and attention only, counting the keys a query may see. A training step
        costs three times as much.
        """
        raise NotImplementedError

    def divided_sizes(self) -> dict[str, int]:
        """Returns the bindings whose sizes the model axis of a mesh must divide."""
        raise NotImplementedError


class Reader(Model[Embedded, Outputs]):
    """A model that reads labelled documents and answers: the base of all for such a stream.

    Padding is `PADDING`, which the model masks. Targets are labels, which `token_losses` finds at
    the first positions of a segment (`brt/data/streams/labelled.py`); it may score those alone, and
    gives (B, T) all the same.

    Attributes:
        targets: what it answers: "classes", "labels", "words" or "spans".
        num_classes: number of classes that it tells apart; None where it is not asked for them.
    """

    targets: str
    num_classes: int | None = None

    def answers(self, x_BTD: Outputs) -> jax.Array:
        """Returns what is answered after a segment, (B, N).

        Of classes the scores of all of them, float, of labels too, positive where a class is more
        likely one of the document's than not; of words the ids that are written, int32; of
        spans the scores of each position as the first, of each as the last, and of the three kinds
        of answer, float.

        Args:
            x_BTD: outputs of the stack.
        """
        raise NotImplementedError


class LanguageModel(Model[jax.Array, jax.Array]):
    """A model that also reads and writes token by token: the base of all that generate text.

    Its caches have two forms. The segment form stands between segments; the decoding form holds a
    segment or block that is being filled, each row at its own position.
    """

    @property
    def period(self) -> int:
        """P in tokens, from a document's start, between two segment forms of a cache.

        The window, or the length of a segment where memory moves at the ends of those, or one
        token.
        """
        raise NotImplementedError

    def begin_decoding(self, caches: tuple) -> tuple:
        """Returns the decoding form of segment-form caches, for `decode`."""
        raise NotImplementedError

    def read_part(
        self, tokens_BT: jax.Array, caches: tuple, counts_B: jax.Array
    ) -> tuple[jax.Array, tuple]:
        """Reads the beginning of a period of every row, all of it at once.

        Args:
            tokens_BT: (B, P) int32 ids; beyond a row's count they are padding.
            caches: the segment form.
            counts_B: (B,) int32, tokens each row reads, 0 ... P - 1.

        Returns:
            (B, P, V) logits, without meaning in padding, and the decoding form of the caches,
            without a trace of it.
        """
        raise NotImplementedError

    def decode(
        self, tokens_B: jax.Array, caches: tuple, reads_B: jax.Array | bool = True
    ) -> tuple[jax.Array, tuple]:
        """Reads one token of every row, each row at its own position in its period.

        Args:
            tokens_B: (B,) int32 ids.
            caches: the decoding form.
            reads_B: (B,) bool, rows that read a token; the caches of the others stay as they
                are, and their logits mean nothing.

        Returns:
            (B, V) logits of the next token and the caches after this one.
        """
        raise NotImplementedError

    def end_decoding(self, caches: tuple) -> tuple:
        """Returns the segment form again; every row must stand at the end of a period (fill 0)."""
        raise NotImplementedError

    # How far it sees.

    def windows_reach(self) -> int:
        """Returns how many tokens back anything but a state or memory of its own is carried."""
        raise NotImplementedError

    def receptive_field(self) -> float:
        """Returns how many tokens before it a token can be influenced by, at most; may be
        infinite."""
        raise NotImplementedError
