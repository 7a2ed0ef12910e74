"""The study `recl` (relative effective context length) in sentences, curves and CSV tables."""

import math
from collections.abc import Iterable

from brt.reporting.drawing.table import csv_text
from brt.reporting.studies.content import Content, content, curve
from brt.studies.context_length import SHARES
from brt.studies.context_losses import EffectiveContext, ModelContext


def present(found: EffectiveContext) -> Content:
    """Returns the study's content.

    Its "series" are Figure 4 of the Transformer-XL paper, its "table" Table 6, a row a model, and
    its "gains" Figure 3: by model, lists (C, C) with None where c' < c.
    """
    labels = "tokens of context", "perplexity"
    series = [curve(m.name, found.contexts, m.perplexities, *labels) for m in found.models]
    rows, gains = [], {}
    numbers: dict[str, int] = {
        "positions": found.positions,
        "models": len(found.models),
        "context_step": found.step,
    }
    for model in found.models:
        row = {"run": model.name, "step": model.step}
        for share, (tokens, ended) in model.effective.items():
            row |= {f"r{share}": tokens, f"r{share}_ended": ended}
            numbers[f"{model.name}/recl_r{share}"] = tokens
        rows.append(row)
        lines = model.gains_CC.tolist()
        gains[model.name] = [[None if math.isnan(x) else x for x in line] for line in lines]
    more = {"contexts": found.contexts, "table": rows, "gains": gains}
    return content(numbers, series, verdict(found.models), **more)


def verdict(models: Iterable[ModelContext]) -> str:
    """Returns one sentence: who makes use of the longest context, at the smallest share."""
    share = SHARES[0]

    def text(model):
        tokens, ended = model.effective[share]
        return f"{tokens:,} tokens{'' if ended else ' or more'} for {model.name}"

    ranked = sorted(models, key=lambda model: -model.effective[share][0])
    return f"Relative effective context length at r = {share}: {', '.join(map(text, ranked))}."


def as_csv(study: Content) -> dict[str, str]:
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
