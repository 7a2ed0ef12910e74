"""What training, evaluation and generation ask of a model, whatever it remembers."""

from flax import nnx

from brt.training.losses import token_losses


class Model(nnx.Module):
    """The base of all models: what they share, and what each must say for itself.

    A model holds parameters only; what it remembers between segments is a tuple of named tuples
    that goes in and comes out (`brt/models/caches.py` says what such a tuple must offer). Besides
    what is written here, a model has

        init_caches(rows)                      the only definition of "empty"
        embed(tokens_BT)                       ids, `BEGIN` too, to (B, T, D)
        stack(x_BTD, caches, key)              (B, T, D), the caches after, a dict of monitors
        logits(x_BTD)                          (..., V) logits or log-probabilities, float32
        begin_decoding(caches), end_decoding(caches), decode(tokens_B, caches, reads_B),
        read_part(tokens_BT, caches, counts_B)
        windows_reach(), receptive_field(), flops_per_token(), divided_sizes()

    and `LanguageModel` describes them. The monitor `added_nats`, if there is one, is added to the
    loss that is trained on, and to nothing that is reported as a loss.

    Attributes:
        vocabulary_size: V.
        dropout: 0 if the model never drops anything; else it is given keys in training.
        dtype: of activations.
        period: tokens, from a document's start, between the places where a cache has its segment
            form: the window, or the length of a segment where memory moves at the ends of those.
    """

    def for_segments(self, length: int):
        """The same model, same parameters, for segments of `length` tokens.

        A memory that moves at the ends of segments takes the length as its `period`.
        """
        return self

    def token_losses(self, x_BTD, targets_BT):
        """-log p of each target in nats, and whether it is the most likely; both (B, T)."""
        return token_losses(self.logits(x_BTD), targets_BT)

    def __call__(self, tokens_BT, caches, key=None):
        """One segment of every row.

        Args:
            tokens_BT: (B, T) int32 ids as read; the target of each is the next token.
            caches: from `init_caches(B)` or the segment before.
            key: dropout key or None.

        Returns:
            (B, T, V) logits and the caches after the segment.
        """
        x_BTD, caches, _ = self.stack(self.embed(tokens_BT), caches, key)
        return self.logits(x_BTD), caches
