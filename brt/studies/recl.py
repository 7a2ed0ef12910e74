"""Relative effective context length (RECL) of a group of runs on the same tokens.

M models of the group    C contexts, rising    P positions (tokens that are predicted)

Losses l_i(c, t), in nats, are of model i on token t with exactly c tokens of context. A longer
context counts where it is better than the best of all models with the shorter one.

Source: Transformer-XL, section 4.3 and appendix C.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from brt.checks import Count, configurable
from brt.evaluation.recorded_run import RecordedRun
from brt.studies.context_losses import context_losses, contexts, draw_positions
from brt.studies.study import Content, Runs, Study, add_map, content, curve

THRESHOLD = 0.01
SHARES = (0.1, 0.5, 1.0)
"""r of Table 6: the hardest share of the positions."""
GAINS = (
    "Perplexity that the longer context takes off, compared with the group's best with the short "
    "one, r = 0.1: dark far to the right is a long memory (Figure 3)."
)


@configurable
@dataclass(eq=False)
class Recl(Study):
    """Relative effective context length of a group: the run and any number of others.

    Args:
        step, longest: contexts are the multiples of the step, in tokens; Table 6 has 100.
        positions: tokens that are scored.
    """

    title = "Relative effective context length"
    caption = (
        "Perplexity by context alone (Figure 4 of the Transformer-XL paper), and what each model "
        "gains compared with the best of the group (Figure 3); the table is its Table 6."
    )
    most_others = math.inf
    any_stream = True

    step: Count = 100
    longest: Count = 1000
    positions: Count = 1000

    def measure(self, run: RecordedRun, others: Runs, documents: np.ndarray, seed: int) -> Content:
        contexts_C = contexts(self.step, self.longest)
        owners_P, offsets_P = draw_positions(run.store, documents, contexts_C, self.positions, seed)
        group = {str(run.workdir): run, **{str(name): other for name, other in others.items()}}
        losses_MCP = np.stack(
            [context_losses(each, owners_P, offsets_P, contexts_C) for each in group.values()]
        )
        numbers: dict[str, int] = {
            "positions": len(offsets_P),
            "models": len(group),
            "context_step": self.step,
        }
        study = content(numbers, [], "", table=[], arrays={}, maps=[])
        x = contexts_C.tolist()
        for i, (name, each) in enumerate(group.items()):
            row: dict[str, Any] = {"run": name, "step": each.step}
            for share in SHARES:
                tokens, ended = effective_context(losses_MCP, i, contexts_C, share)
                row |= {f"r{share}": tokens, f"r{share}_ended": ended}
                numbers[f"{name}/recl_r{share}"] = tokens
            study["table"].append(row)
            y = perplexities(losses_MCP)[i].tolist()
            study["series"].append(curve(name, x, y, "tokens of context", "perplexity"))
            gains_CC = gains(losses_MCP, i, SHARES[0])
            add_map(
                study,
                f"gains_{i}",
                np.where(np.isnan(gains_CC), -1, gains_CC.clip(0)),  # a negative cell is empty
                f"Gains of longer contexts: {Path(name).name}",
                GAINS,
                ("longer context, tokens", "short context, tokens"),
                ((x[0], x[-1]), (x[0], x[-1])),
                x_values=x,
                y_values=x,
            )
        study["summary"] = _summary(study["table"])
        return study


def _summary(rows: list[dict[str, Any]]) -> str:
    name = f"r{SHARES[0]}"
    ranked = sorted(rows, key=lambda row: -row[name])
    clauses = (
        f"{row[name]:,} tokens{'' if row[f'{name}_ended'] else ' or more'} for {row['run']}"
        for row in ranked
    )
    return f"Relative effective context length at r = {SHARES[0]}: {', '.join(clauses)}."


def baseline(losses_MCP: np.ndarray) -> np.ndarray:
    """Returns b(c, t), the best loss in the group with context c, (C, P)."""
    return np.min(losses_MCP, axis=0)


def hard_positions(baseline_P: np.ndarray, share: float) -> np.ndarray:
    """Returns the indices of the share r of positions with the largest baseline b(c, .)."""
    count = max(round(share * len(baseline_P)), 1)
    return np.sort(np.argsort(-np.asarray(baseline_P), kind="stable")[:count])


def relative_loss(losses_MCP: np.ndarray, model: int, short: int, long: int, share: float) -> float:
    """Returns f_i(c, c'), in nats: the mean over hard positions of min(b(c, t), l_i(c', t)).

    short and long are the indices of c and c'.
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
    """Returns the RECL, the first context whose next one improves by less than `THRESHOLD`.

    In tokens, and whether the search ended by itself; if not, it is the longest context.
    """
    for short in range(len(contexts_C) - 1):
        if gain(losses_MCP, model, short, short + 1, share) < THRESHOLD:
            return int(contexts_C[short]), True
    return int(contexts_C[-1]), False


def gains(losses_MCP: np.ndarray, model: int, share: float) -> np.ndarray:
    """Returns Figure 3: improvements in perplexity, (C, C) of c and c'; NaN where c' < c."""
    count = len(losses_MCP[model])
    gains_CC = np.full((count, count), np.nan)
    for short in range(count):
        for long in range(short, count):
            gains_CC[short, long] = gain(losses_MCP, model, short, long, share, relative=False)
    return gains_CC


def perplexities(losses_MCP: np.ndarray) -> np.ndarray:
    """Returns Figure 4: e^(mean loss) of each model with each context, (M, C)."""
    return np.exp(np.mean(losses_MCP, axis=-1))
