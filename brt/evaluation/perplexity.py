"""Bits per token, byte and character, and perplexity, from a sum of nats.

Figures per byte, character and word are comparable only for the same text: a vocabulary may drop
white space that the text still counts (`lost_white_space`).

Source: Block-Recurrent, appendix I.
"""

import math

import numpy as np

from brt.data.vocabularies.base import Vocabulary
from brt.data.vocabularies.report import lost_white_space

LARGEST = 700.0
"""Nats whose exponential is still a float."""


def per_token(nats: float, weight: float) -> dict[str, float]:
    loss = nats / weight
    return {
        "loss": loss,
        "bits_per_token": loss / math.log(2),
        "perplexity": math.exp(min(loss, LARGEST)),
    }


def per_text(nats: float, manifest: dict) -> dict[str, float]:
    """Returns metrics of a whole split that do not count tokens.

    nats: of all tokens. manifest: of the store, with bytes, characters and words (as counted by the
    text's publisher), 0 if unknown.
    """
    bits = nats / math.log(2)
    figures = {}
    for name, count in (("byte", manifest["bytes"]), ("character", manifest["characters"])):
        if count:
            figures[f"bits_per_{name}"] = bits / count
    if words := manifest["words"]:
        figures["word_level_perplexity"] = math.exp(min(nats / words, LARGEST))
        figures["tokens_per_word"] = manifest["tokens"] / words
    return figures


def white_space_caveat(vocabulary: Vocabulary, tokens: np.ndarray) -> str:
    """Returns a sentence on the white space that a vocabulary loses.

    tokens: a few thousand ids of the split.
    """
    words = vocabulary.decode(tokens).split()
    lost = lost_white_space(vocabulary, words) if words else []
    if not lost:
        return f"The vocabulary {vocabulary.name} keeps white space: every character is predicted."
    return (
        f"{vocabulary.name} does not keep {', '.join(lost)}: they are counted as characters and "
        "not predicted, so compare bits per character and byte, and perplexity per word, only "
        "between models with this vocabulary."
    )
