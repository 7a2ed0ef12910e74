"""Tables of runs, of their evaluations, and of the numbers of studies."""

from collections.abc import Sequence

from brt.reporting.collect import Group, differing, given_to
from brt.reporting.drawing.rounding import rounded
from brt.reporting.drawing.table import Cell, Table, plain_table
from brt.reporting.model_settings import model_setting
from brt.reporting.paper_positions import paper_position
from brt.reporting.runs import Run

EVALUATED = (
    ("bits_per_token", "bits/token", 4),
    ("cleared_bits_per_token", "state cleared", 4),
    ("bits_per_byte", "bits/byte", 4),
    ("bits_per_character", "bits/character", 4),
    ("perplexity", "token perplexity", 2),
    ("word_level_perplexity", "word-level perplexity", 2),
    ("tokens_per_word", "tokens/word", 4),
    ("task_accuracy", "task accuracy", 3),
    ("answer_accuracy", "answers right", 3),
    ("recall_accuracy", "recall", 3),
    ("cleared_recall_accuracy", "recall, state cleared", 3),
    ("scored_tokens", "tokens scored", 0),
)


def overview(runs: list[Run]) -> Table:
    titles = ("run", "system", "layers", "width", "window", "memory", "segment", "corpus", "seed",
              "step", "of", "tokens read")  # fmt: skip
    rows = []
    for run in runs:
        position = paper_position(run)
        sizes = (model_setting(run.settings, n, "–") for n in ("num_layers", "width", "window"))
        texts = run.name, position.system, *sizes, position.memory_shown
        texts += run.settings["Trainer.segment_length"], run.corpus
        read = run.step * run.settings.get("Trainer.tokens_per_step", 0)
        counts = [
            Cell(f"{value:,}", (value,))
            for value in (run.step, run.settings.get("Trainer.steps", 0), read)
        ]
        if run.stopped_early:
            counts[0] = counts[0]._replace(note=f"{run.name}: stopped early, and is done")
        rows.append([*texts, run.seed, *counts])
    caption = "What each run folder holds. `brt.train` with the same command continues a run."
    return plain_table("overview", "Run folders", caption, titles, rows)


def settings_that_differ(entries: Sequence[Group]) -> list[Table]:
    """Returns a table with a column for each entry, if there are several."""
    settings = [entry.runs[0].identity() for entry in entries]
    rows = [
        [name, *(str(bound.get(name, "–")) for bound in settings)] for name in differing(entries)
    ]
    caption = (
        "What may explain a difference between these runs: two losses compare two architectures "
        "only where optimizer, schedule, batch, budget and vocabulary are the same."
    )
    titles = "binding", *(entry.name for entry in entries)
    table = plain_table("settings", "Settings in which they differ", caption, titles, rows)
    return [table] if rows else []


def evaluations(runs: list[Run]) -> Table:
    entries = [(run, split, scalars) for run in runs for split, scalars in run.evaluations.items()]
    shown = [entry for entry in EVALUATED if any(entry[0] in s for _, _, s in entries)]
    rows = []
    for run, split, scalars in entries:
        given, by = given_to(scalars), scalars.get("best_by")
        note = f"{run.name}, {split}: evaluated with {given}" if given else ""
        best = f"{run.name}, {split}: the best checkpoint by {by}" if by else ""
        cells = [Cell(run.name, note=note), split, _number(scalars.get("step"), 0, best)]
        for name, _, decimals in shown:
            note = scalars.get("caveat", "") if name == "bits_per_character" else ""
            cells.append(_number(scalars.get(name), decimals, note))
        rows.append(cells)
    caption = (
        "Every document of the split once, from its start to its end. The difference between bits "
        "per token and the next column is the cost of clearing the state."
    )
    titles = "run", "split", "step", *(title for _, title, _ in shown)
    return plain_table("evaluations", "Whole splits", caption, titles, rows)


def numbers_table(name: str, numbers: dict) -> Table:
    rows = [[key.replace("_", " "), _number(value, 6)] for key, value in numbers.items()]
    return plain_table(name, "", "", ["quantity", "value"], rows)


def rows_table(name: str, rows: list[dict]) -> Table:
    """Returns the rows of a study; `x_ended` false means that x is a lower bound."""
    keys = dict.fromkeys(key for row in rows for key in row if not key.endswith("_ended"))
    lines = []
    for row in rows:
        cells = [_number(row.get(key), 4) for key in keys]
        for i, key in enumerate(keys):
            if row.get(f"{key}_ended") is False:
                cells[i] = cells[i]._replace(text=f"{cells[i].text} or more")
        lines.append(cells)
    return plain_table(name, "", "", [key.replace("_", " ") for key in keys], lines)


def _number(value, decimals, note=""):
    if value is None:
        return Cell("–")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return Cell(str(value))
    text = f"{value:,}" if isinstance(value, int) else rounded(value, decimals)
    return Cell(text, (value,), note)
