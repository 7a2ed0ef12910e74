"""The interface of a model for labelled documents."""

import jax

from brt.models.model import Embedded, Model, Outputs


class Reader(Model[Embedded, Outputs]):
    """A model that answers questions about labelled documents.

    It masks `PADDING`. `token_losses` gets labels as targets, at the first positions of a segment
    (`brt/data/streams/labelled.py`).

    Attributes:
        targets: "classes", "labels", "words" or "spans".
        num_classes: None for words and spans.
        num_words: most tokens of an answer; None: any number.
    """

    targets: str
    num_classes: int | None = None
    num_words: int | None = None

    def answers(self, x_BTD: Outputs) -> jax.Array:
        """Returns the answer after a segment, (B, N).

        classes: scores. labels: scores, positive where the class applies. words: int32 ids.
        spans: scores of each position as the first, of each as the last, and of three kinds.
        """
        raise NotImplementedError
