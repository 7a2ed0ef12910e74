"""The text of each token of a document, for any vocabulary."""

import itertools

import numpy as np

from brt.data.vocabularies.base import Vocabulary

PIECE = 32
"""Tokens that are decoded together."""

AROUND = 8
"""Tokens on both sides that are decoded with a piece, so that characters cut in two are whole."""


def token_texts(vocabulary: Vocabulary, tokens: np.ndarray) -> list[str]:
    """Returns one string a token; joined they are the document as the vocabulary decodes it.

    A character that several tokens share belongs to the first of them, and the others are empty.

    tokens: integers (tokens,).
    """
    tokens = np.asarray(tokens)
    texts: list[str] = []
    for start in range(0, len(tokens), PIECE):
        stop = min(start + PIECE, len(tokens))
        first = max(start - AROUND, 0)
        text = vocabulary.decode(tokens[first : stop + AROUND])
        ends = [len(vocabulary.decode(tokens[first:end])) for end in range(start, stop + 1)]
        if stop == len(tokens):
            ends[-1] = len(text)
        ends = np.maximum.accumulate(np.minimum(ends, len(text))).tolist()
        texts += [text[begin:end] for begin, end in itertools.pairwise(ends)]
    return texts
