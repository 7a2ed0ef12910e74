"""Kinds of tokens: line ends, white space, beginnings and insides of words, repeated words."""

from collections.abc import Sequence

import numpy as np

from brt.evaluation.words import Words

KINDS = ("line break", "white space", "first of a word", "inside a word", "other")
"""A token with a line break is always of the first kind."""


def token_kinds(words: Words) -> np.ndarray:
    """Returns the index in `KINDS` of each token of a document, int64 (tokens,)."""
    starts = set(words.starts.tolist())
    return np.array([_kind(words, starts, token) for token in range(len(words.texts))], np.int64)


def _kind(words, starts, token):
    text = words.texts[token]
    if "\n" in text:
        return 0
    if token in starts:
        return 2
    if words.at(token) is not None:
        return 3
    return 1 if text.isspace() else 4


def since_last_occurrence(words: Words) -> np.ndarray:
    """Returns the tokens since the last occurrence of each token's word, float64 (tokens,).

    Infinity at a word's first occurrence, nan outside of words.
    """
    numbers = [words.at(token) for token in range(len(words.texts))]
    distances = [words.last_seen(number) for number in range(len(words.words))]
    since_W = np.array([np.inf if distance is None else distance for distance in distances])
    return np.array([np.nan if number is None else since_W[number] for number in numbers])


def by_kind(
    nats: Sequence[np.ndarray],
    others: Sequence[np.ndarray],
    kinds: Sequence[np.ndarray],
    weights: Sequence[np.ndarray],
) -> dict[str, float]:
    """Sums two recordings by kind, over scored tokens.

    Args:
        nats, others: losses of each document times its loss weights, (tokens,).
        kinds: of each document, of `token_kinds`.
        weights: loss weights of each document.

    Returns:
        By `KIND_tokens` and so on: number of tokens, bits per token by both recordings, and the
        contribution to the mean difference of all tokens.
    """
    kind_T, weights_T = np.concatenate(kinds), np.concatenate(weights)
    sums = [
        np.bincount(kind_T, np.concatenate(values).astype(np.float64) / np.log(2), len(KINDS))
        for values in (nats, others)
    ]
    tokens = np.bincount(kind_T[weights_T > 0], minlength=len(KINDS))
    totals = np.bincount(kind_T, weights_T, len(KINDS))
    bits, other_bits = (total / np.where(totals > 0, totals, 1.0) for total in sums)
    contribution = (sums[1] - sums[0]) / weights_T.sum()
    columns = {
        "tokens": tokens,
        "bits": bits,
        "other_bits": other_bits,
        "contribution_bits": contribution,
    }
    return {
        f"{kind.replace(' ', '_')}_{name}": values[number].item()
        for number, kind in enumerate(KINDS)
        for name, values in columns.items()
    }
