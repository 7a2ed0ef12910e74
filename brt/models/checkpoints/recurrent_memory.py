"""Reads parameters of booydar/LM-RMT's PyTorch code, a Transformer-XL with memory tokens.

A loaded model keeps the code's artefact (`published_artefacts`) in segments, not while decoding: a
memory token's relative position to a later one is the relative shift's leftover.
"""

from brt.models.checkpoints import transformer_xl as txl_checkpoint
from brt.models.checkpoints.meliad import Source
from brt.models.memory_tokens.model import RecurrentMemoryTransformer

MEMORY = {"memory_SD": Source("mem_tokens", lambda x_S1D: x_S1D[:, 0])}
"""Sources of the parameters that Transformer-XL does not have."""


def load(params: dict, config: dict) -> RecurrentMemoryTransformer:
    def around(rngs, body):
        return RecurrentMemoryTransformer(
            rngs,
            num_memory=config["num_mem_tokens"],
            body=body,
            memory_at_end=config["mem_at_end"],
            read_memory_from_cache=config["read_mem_from_cache"],
            allow_long_memory=True,
        )

    return txl_checkpoint.load(params, config, around, MEMORY)
