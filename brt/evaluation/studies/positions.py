"""How the loss depends on where a token stands: in its document, its segment and its block.

Source: Block-Recurrent, appendix H (Figure 6).
"""

import math

import numpy as np

POINTS = 500
"""Points of the curve over a document, evenly spread over the logarithm of the position."""
PLACES = 64
"""Parts of a segment or block."""


def positions(recordings: dict, store, documents) -> dict:
    """Cumulative cross-entropy by position, and the loss by place in segment and block.

    Args:
        recordings: aligned `Recording`s by name, the first of the run itself.
        store: what they are recordings of.
        documents: which to look at.

    Returns:
        "numbers", "series" and "verdict" of a study. Bits at position x are the mean over the
        first x tokens of all documents, of shorter ones as many as they have; at the longest
        document's length that is the mean over all tokens.
    """
    lengths = store.lengths_D[list(documents)]
    longest, numbers, series, curves = int(lengths.max()), {}, [], {}
    grid = _grid(longest)
    reaching_T = _reaching(lengths, longest)
    counts_T = np.cumsum(reaching_T)
    for name, recording in recordings.items():
        sums_T = np.zeros(longest)
        for document in documents:
            nats_T = recording.document(document).nats_T
            sums_T[: len(nats_T)] += nats_T
        bits_X = (np.cumsum(sums_T) / counts_T)[grid - 1] / math.log(2)
        series.append(
            {
                "name": f"cumulative, {name}",
                "x": grid.tolist(),
                "y": bits_X.tolist(),
                "x_label": "position, tokens",
                "y_label": "bits per token so far",
            }
        )
        curves[name] = series[-1]
        numbers[f"bits_per_token, {name}"] = float(bits_X[-1])
        if name == next(iter(recordings)):
            series += _by_places(name, recording.manifest, sums_T, reaching_T)
    series.append(
        {
            "name": "documents",
            "x": grid.tolist(),
            "y": reaching_T[grid - 1].tolist(),
            "x_label": "position, tokens",
            "y_label": "documents that reach it",
        }
    )
    numbers |= {"documents": len(lengths), "tokens": int(lengths.sum()), "longest": longest}
    return {"numbers": numbers, "series": series, "verdict": _verdict(curves, longest)}


def _grid(longest):
    return np.unique(np.geomspace(1, longest, POINTS).round().astype(int))


def _reaching(lengths, longest):
    """Documents that have a token at each position, (longest,)."""
    return len(lengths) - np.cumsum(np.bincount(lengths, minlength=longest + 1))[:longest]


def _by_places(name, manifest, sums_T, reaching_T):
    """The mean loss at each place in a segment and in a block, without first segments."""
    segment_length = manifest["segment_length"]
    # A document's first tokens are dear for another reason.
    begin = segment_length if len(sums_T) > segment_length else 0
    places_T = np.arange(begin, len(sums_T))
    for what, length in (("segment", segment_length), ("block", manifest["window"])):
        parts = min(PLACES, length)
        part_T = places_T % length * parts // length
        sums = np.bincount(part_T, sums_T[begin:], parts)
        counts = np.bincount(part_T, reaching_T[begin:], parts)
        known = np.flatnonzero(counts)
        yield {
            "name": f"by place in the {what}, {name}",
            "x": (known * length // parts).tolist(),
            "y": (sums[known] / counts[known] / math.log(2)).tolist(),
            "x_label": f"place in the {what}, tokens",
            "y_label": "bits per token",
        }


def _verdict(curves, longest):
    """A sentence on the first of the curves, which are by name; the others in brackets."""
    (_, own), *others = curves.items()
    middle = int(np.searchsorted(own["x"], max(longest // 10, 1)))
    early, whole = (
        "".join(f" ({name} {curve['y'][place]:.4f})" for name, curve in others)
        for place in (middle, -1)
    )
    return (
        f"Over the first {own['x'][middle]:,} tokens of each document the loss is "
        f"{own['y'][middle]:.4f} bits per token{early}, over all of its up to {longest:,} tokens "
        f"{own['y'][-1]:.4f}{whole}."
    )
