"""The base of language models around a pretrained decoder."""

from typing import Any

from flax import nnx

from brt.models.body import Body
from brt.models.wrapper import LanguageModelWrapper
from brt.pretrained.decoders.decoder import Decoder


class DecoderModel(LanguageModelWrapper, Body):
    body: Decoder

    def __init__(self, rngs: nnx.Rngs, body: Any, special_tokens: int):
        name = type(self).__name__
        if special_tokens:
            raise ValueError(
                f"{name}.body has no entries for special tokens: bind "
                "RecurrentMemoryTransformer.auxiliary_weight = 0."
            )
        decoder = body(rngs)
        if not isinstance(decoder, Decoder):
            raise ValueError(
                f"{name}.body must build a decoder, such as @GPT2 or @Llama, and "
                f"{type(decoder).__name__} is none."
            )
        self.wrap(decoder)
        self.width = decoder.width

    def flops_per_token(self) -> float:
        return 2.0 * self.body.head.size + self.flops_per_position()
