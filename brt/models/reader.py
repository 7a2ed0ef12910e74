"""The interface of a model that answers questions about labelled documents."""

import jax

from brt.models.model import Embedded, Model, Outputs


class Reader(Model[Embedded, Outputs]):
    """A model that answers questions about labelled documents: the base of all for such a stream.

    Padding is `PADDING`, which the model masks. Targets are labels, which `token_losses` finds at
    the first positions of a segment (`brt/data/streams/labelled.py`).

    Attributes:
        targets: "classes", "labels", "words" or "spans".
        num_classes: number of classes; None where the targets are none.
    """

    targets: str
    num_classes: int | None = None

    def answers(self, x_BTD: Outputs) -> jax.Array:
        """Returns the answer after a segment, (B, N).

        classes: scores. labels: scores, positive where the class applies. words: ids, int32.
        spans: scores of each position as the first, of each as the last, and of three kinds.
        """
        raise NotImplementedError
