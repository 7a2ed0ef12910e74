"""Relative effective context length (RECL) of a group of runs on the same tokens.

M models of the group    C contexts    P positions

Source: Transformer-XL, section 4.3 and appendix C.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from brt.checks import Count, configurable
from brt.evaluation.recorded_run import RecordedRun
from brt.storage.csv_text import csv_text
from brt.studies import context_length
from brt.studies.content import Content, content, curve
from brt.studies.context_length import SHARES
from brt.studies.context_losses import context_losses, contexts, draw_positions
from brt.studies.study import Runs, Study


class ModelContext(NamedTuple):
    """The effective context of one model of a group.

    name: its run folder.
    step: of its parameters.
    effective: share r of the hardest positions to the RECL in tokens, and whether the search ended
        by itself; if not, the model may use more.
    gains_CC: Figure 3, what it gains in perplexity from each longer context, compared with the
        best of the group with the short one, at the smallest share; NaN where c' < c.
    perplexities: Figure 4, with each context.
    """

    name: str
    step: int
    effective: dict[float, tuple[int, bool]]
    gains_CC: np.ndarray
    perplexities: list[float]


class EffectiveContext(NamedTuple):
    """RECL of a group of models on the same tokens.

    contexts: c in tokens, rising. step: from one to the next.
    positions: tokens that were scored.
    """

    contexts: list[int]
    step: int
    positions: int
    models: list[ModelContext]


@configurable
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

    def __init__(self, step: Count = 100, longest: Count = 1000, positions: Count = 1000):
        self.step = step
        self.longest = longest
        self.positions = positions

    def measure(self, run: RecordedRun, others: Runs, documents: np.ndarray, seed: int = 0):
        contexts_C = contexts(self.step, self.longest)
        owners_P, offsets_P = draw_positions(run.store, documents, contexts_C, self.positions, seed)
        group = {str(run.workdir): run, **others}
        losses_MCP = np.stack(
            [context_losses(each, owners_P, offsets_P, contexts_C) for each in group.values()]
        )
        models = []
        for i, (name, each) in enumerate(group.items()):
            models.append(
                ModelContext(
                    str(name),
                    each.step,
                    {
                        share: context_length.effective_context(losses_MCP, i, contexts_C, share)
                        for share in context_length.SHARES
                    },
                    context_length.gains(losses_MCP, i, context_length.SHARES[0]),
                    context_length.perplexities(losses_MCP)[i].tolist(),
                )
            )
        return EffectiveContext(contexts_C.tolist(), self.step, len(offsets_P), models)

    @staticmethod
    def present(result: EffectiveContext) -> Content:
        labels = "tokens of context", "perplexity"
        series = [curve(m.name, result.contexts, m.perplexities, *labels) for m in result.models]
        rows, gains = [], {}
        numbers: dict[str, int] = {
            "positions": result.positions,
            "models": len(result.models),
            "context_step": result.step,
        }
        for model in result.models:
            row = {"run": model.name, "step": model.step}
            for share, (tokens, ended) in model.effective.items():
                row |= {f"r{share}": tokens, f"r{share}_ended": ended}
                numbers[f"{model.name}/recl_r{share}"] = tokens
            rows.append(row)
            lines = model.gains_CC.tolist()
            gains[model.name] = [[None if math.isnan(x) else x for x in line] for line in lines]
        more = {"contexts": result.contexts, "table": rows, "gains": gains}
        more["csv"] = csv_tables(more | {"series": series})
        return content(numbers, series, summary(result.models), **more)


def summary(models: Iterable[ModelContext]) -> str:
    """Returns one sentence: who makes use of the longest context, at the smallest share."""
    share = SHARES[0]

    def text(model):
        tokens, ended = model.effective[share]
        return f"{tokens:,} tokens{'' if ended else ' or more'} for {model.name}"

    ranked = sorted(models, key=lambda model: -model.effective[share][0])
    return f"Relative effective context length at r = {share}: {', '.join(map(text, ranked))}."


def csv_tables(study: Content) -> dict[str, str]:
    """Returns a study's table, Figure 3 and Figure 4 as CSV texts by name."""
    contexts = study["contexts"]
    table = [["run", *(f"r = {r}" for r in SHARES), *(f"r = {r}, search ended" for r in SHARES)]]
    for row in study["table"]:
        ended = [row[f"r{r}_ended"] for r in SHARES]
        table.append([row["run"], *(row[f"r{r}"] for r in SHARES), *ended])
    figure_3 = [["run", "context", "longer context", "gain in perplexity"]]
    for name, gains in study["gains"].items():
        for c, line in zip(contexts, gains):
            figure_3 += [[name, c, d, x] for d, x in zip(contexts, line) if x is not None]
    figure_4 = [["run", "context", "perplexity"]]
    for series in study["series"]:
        figure_4 += [[series["name"], c, y] for c, y in zip(series["x"], series["y"])]
    tables = {"table": table, "gains": figure_3, "perplexity": figure_4}
    return {name: csv_text(lines) for name, lines in tables.items()}
