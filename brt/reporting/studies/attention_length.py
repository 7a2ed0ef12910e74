"""The study `attention_length` in sentences and a curve."""

import math

from brt.reporting.studies.content import Content, content, curve
from brt.studies.attention_length import THRESHOLD, AttentionLength, Sweep

BEST_LENGTH, BEST_PERPLEXITY = "best_length", "best_perplexity"
"""Names of the numbers "Attn Len" and "PPL best", for the tables that show them."""


def present(found: AttentionLength) -> Content:
    """Returns the study's content: the columns "PPL best" and "Attn Len", and all lengths tried.

    The only series is the perplexity at every length.
    """
    sweep = found.sweep
    perplexities = list(map(math.exp, sweep.losses))
    numbers = {
        "initial_length": sweep.lengths[0],
        "initial_perplexity": perplexities[0],
        BEST_LENGTH: sweep.best,
        BEST_PERPLEXITY: perplexities[sweep.lengths.index(sweep.best)],
        "ended": int(sweep.ended),
    }
    labels = "attention length at evaluation, tokens", "perplexity"
    series = curve(found.binding, sweep.lengths, perplexities, *labels)
    return content(numbers, [series], verdict(sweep))


def verdict(sweep: Sweep) -> str:
    """Returns one sentence: what a longer memory takes off the perplexity."""
    initial = math.exp(sweep.losses[0])
    best = math.exp(sweep.losses[sweep.lengths.index(sweep.best)])
    after = "longer ones were not tried"
    if sweep.ended:
        after = f"{sweep.lengths[-1]:,} gains less than {THRESHOLD:.1%} more"
    own = f"{initial:,.4f} with an attention length of {sweep.lengths[0]:,}"
    if sweep.best == sweep.lengths[0]:
        return f"Perplexity is {own}, as in training; {after}."
    return f"Perplexity falls from {own} to {best:,.4f} with {sweep.best:,}; {after}."
