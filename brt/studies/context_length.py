"""Relative effective context length (RECL): the context that a model of a group makes use of.

Arrays of losses in nats, float64; `context_losses` makes them.

M models of the group    C contexts, rising    P positions (tokens that are predicted)

A loss is l_i(c, t), of model i on token t with exactly c tokens of context. A longer context c'
counts where it beats the best that *any* model of the group does with c: so a model that is good
with little context is not outdone by one that starts out worse and gains more.

Source: Transformer-XL, section 4.3 and appendix C.
"""

import math

import numpy as np

THRESHOLD = 0.01
"""A relative gain below it ends the search (appendix C)."""
SHARES = (0.1, 0.5, 1.0)
"""r of Table 6: the hardest share of the positions."""


def baseline(losses_MCP: np.ndarray) -> np.ndarray:
    """Returns b(c, t), the best loss in the group with context c, (C, P)."""
    return np.min(losses_MCP, axis=0)


def hard_positions(baseline_P: np.ndarray, share: float) -> np.ndarray:
    """Returns the top-r set: indices of the share r of positions whose baseline is largest.

    Args:
        baseline_P: b(c, .) of one context.
        share: r, above 0 and at most 1; the count is rounded, and at least 1.

    Raises:
        ValueError: a share out of range.
    """
    if not 0 < share <= 1:
        raise ValueError(f"r = {share} must be above 0 and at most 1.")
    count = max(round(share * len(baseline_P)), 1)
    return np.sort(np.argsort(-np.asarray(baseline_P), kind="stable")[:count])


def relative_loss(losses_MCP: np.ndarray, model: int, short: int, long: int, share: float) -> float:
    """Returns f_i(c, c'), the mean, over the hard positions, of min(b(c, t), l_i(c', t)), in nats.

    Args:
        losses_MCP: of the group.
        model: i.
        short, long: indices of c and c'.
        share: r.
    """
    baseline_P = baseline(losses_MCP)[short]
    hard = hard_positions(baseline_P, share)
    return float(np.minimum(baseline_P[hard], losses_MCP[model][long][hard]).mean())


def gain(
    losses_MCP: np.ndarray, model: int, short: int, long: int, share: float, relative: bool = True
) -> float:
    """Returns g_i(c, c') = (e^f(c, c) - e^f(c, c')) / e^f(c, c).

    relative: False for the numerator alone (Figure 3).
    """
    before = math.exp(relative_loss(losses_MCP, model, short, short, share))
    after = math.exp(relative_loss(losses_MCP, model, short, long, share))
    return (before - after) / (before if relative else 1.0)


def effective_context(
    losses_MCP: np.ndarray, model: int, contexts_C: np.ndarray, share: float
) -> tuple[int, bool]:
    """Returns the RECL, the first context whose next one gains less than `THRESHOLD`.

    Args:
        losses_MCP, model, share: as `relative_loss`.
        contexts_C: c in tokens, each one step longer than the one before.

    Returns:
        The context in tokens, and whether the search ended by itself; if not, it is the longest
        context there was, and the model may use more.
    """
    for short in range(len(contexts_C) - 1):
        if gain(losses_MCP, model, short, short + 1, share) < THRESHOLD:
            return int(contexts_C[short]), True
    return int(contexts_C[-1]), False


def gains(losses_MCP: np.ndarray, model: int, share: float) -> np.ndarray:
    """Returns Figure 3: unnormalised gains, (C, C) of c and c'; NaN where c' is shorter than c."""
    count = len(losses_MCP[model])
    found_CC = np.full((count, count), np.nan)
    for short in range(count):
        for long in range(short, count):
            found_CC[short, long] = gain(losses_MCP, model, short, long, share, relative=False)
    return found_CC


def perplexities(losses_MCP: np.ndarray) -> np.ndarray:
    """Returns Figure 4: e^(mean loss) of each model with each context, (M, C)."""
    return np.exp(np.mean(losses_MCP, axis=-1))
