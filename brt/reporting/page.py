"""The page of a report: styles, figures, tables and texts in one HTML file."""

import html
import json
import re
from pathlib import Path
from typing import Any

from brt.reporting.collect import given_to
from brt.reporting.drawing.plots import Plot, svg
from brt.reporting.drawing.table import Cell, Column, Table
from brt.reporting.model_settings import model_setting
from brt.reporting.paper_positions import PaperPosition
from brt.reporting.runs import Run

HERE = Path(__file__).parent

MANY_ROWS = 40
"""Tables with more rows are folded."""
READER = """
<p class="caption">Every token is as deeply coloured as the model was surprised by it. Pick another
recording with the buttons, or subtract one: state cleared from state kept, one model from another.
Hover for the numbers. The strip is the whole document, the list its largest tokens; click either to
go there.</p>
<div class="controls"><label>document <select id="document"></select></label></div>
<div class="controls">loss of <span id="own" class="controls"></span>
<label>minus <select id="minus"></select></label></div>
<div class="controls"><label>full colour at
<input id="most" type="range" min=".25" max="16" step=".25"><span id="most-shown"></span></label>
<label><input id="borders" type="checkbox" checked> segment borders</label>
<strong id="mean"></strong><span id="key" class="quiet"></span></div>
<canvas id="map"></canvas>
<div id="reading"><div id="text"></div><ol id="largest"></ol></div>
<div id="tip" hidden></div>
"""


def page(
    title: str,
    sections: list[tuple[str, str, str]],
    problems: list[str],
    documents: list[dict[str, Any]],
) -> str:
    """Returns the page.

    Args:
        sections: (anchor, heading, HTML) of each.
        problems: sentences shown above everything.
        documents: of `reader_documents`; empty for a page without a reader.
    """
    if documents:
        sections = [*sections, ("reader", "Reader", READER)]
    links = "".join(f'<a href="#{name}">{html.escape(head)}</a>' for name, head, _ in sections)
    body = "\n".join(
        f'<section id="{name}"><h2>{html.escape(head)}</h2>\n{content}</section>'
        for name, head, content in sections
    )
    told = "".join(f"<li>{_prose(problem)}</li>" for problem in problems)
    notice = f'<ul class="problems">{told}</ul>' if told else ""
    data = _embedded("reader-data", {"documents": documents}) if documents else ""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>\n{_own_file('page.css')}</style></head>\n"
        f"<body><header><h1>{html.escape(title)}</h1><nav>{links}</nav>"
        '<button id="theme">light / dark</button></header>\n'
        f"{notice}\n{body}\n{data}\n<script>\n{_own_file('page.js')}</script></body></html>\n"
    )


def _own_file(name):
    return (HERE / name).read_text(encoding="utf-8")


def _embedded(name, content):
    text = json.dumps(content).replace("<", "\\u003c")
    return f'<script type="application/json" id="{name}">{text}</script>'


def table_html(table: Table) -> str:
    return (
        f"<h3>{html.escape(table.title)}</h3>\n{table.as_html()}\n"
        f'<p class="caption">{_prose(table.caption)}</p>\n'
    )


def _prose(text):
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", html.escape(text))


def plots_html(plots: list[Plot]) -> str:
    figures = "".join(
        f'<figure id="{html.escape(plot.name)}"><h3>{html.escape(plot.title)}</h3>{svg(plot)}'
        + (f"<figcaption>{_prose(plot.caption)}</figcaption>" if plot.caption else "")
        + "</figure>\n"
        for plot in plots
    )
    return f'<div class="plots">\n{figures}</div>\n' if plots else ""


def folded(count: int, what: str, content: str) -> str:
    """Returns content behind a line with its count."""
    return (
        f"<details><summary>{count:,} {what}{'s' * (count != 1)}</summary>\n{content}</details>\n"
    )


def overview(runs: list[Run], positions: list[PaperPosition]) -> Table:
    """Returns a table of the runs, their sizes and steps."""
    titles = "run", "system", "layers", "width", "window", "memory", "segment", "corpus", "seed"
    columns = [Column("", title) for title in (*titles, "step", "of", "tokens read")]
    rows = []
    for run, position in zip(runs, positions, strict=True):
        names = "num_layers", "width", "window"
        found = [model_setting(run.settings, name, "–") for name in names]
        found += [position.memory_shown, run.settings["Trainer.segment_length"]]
        last = run.settings.get("Trainer.steps", 0)
        read = run.step * run.settings.get("Trainer.tokens_per_step", 0)
        cells = [run.name, position.system, *found, run.corpus, run.settings.get("Trainer.seed", 0)]
        counts = [Cell(f"{value:,}", (value,)) for value in (run.step, last, read)]
        if run.stopped_early:
            counts[0] = counts[0]._replace(note=f"{run.name}: stopped early, and is done")
        rows.append([*(Cell(str(cell)) for cell in cells), *counts])
    caption = "What each run folder holds. `brt.train` with the same command goes on with a run."
    return Table("overview", "What was run", caption, columns, rows)


def settings_that_differ(runs: list[Run]) -> list[Table]:
    """Returns a table of the bindings that differ between runs, if any."""
    settings = [
        run.identity() | {"Trainer.seed": run.settings.get("Trainer.seed", 0)} for run in runs
    ]
    names = dict.fromkeys(name for found in settings for name in found)
    rows = []
    for name in names:
        values = [str(found.get(name, "–")) for found in settings]
        if len(set(values)) > 1:
            rows.append([Cell(name), *map(Cell, values)])
    caption = (
        "What may explain a difference between these runs: two losses compare two architectures "
        "only where optimizer, schedule, batch, budget and vocabulary are the same."
    )
    columns = [Column("", "binding"), *(Column("", run.name) for run in runs)]
    table = Table("settings", "Settings in which they differ", caption, columns, rows)
    return [table] if rows else []


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


def evaluations(runs: list[Run]) -> Table:
    """Returns a table of the last evaluation of each run and split."""
    found = [(run, split, scalars) for run in runs for split, scalars in run.evaluations.items()]
    shown = [entry for entry in EVALUATED if any(entry[0] in s for _, _, s in found)]
    columns = [Column("", "run"), Column("", "split"), Column("", "step")]
    columns += [Column("", title) for _, title, _ in shown]
    rows = []
    for run, split, scalars in found:
        given = given_to(scalars)
        note = f"{run.name}, {split}: evaluated with {given}" if given else ""
        by = scalars.get("best_by")
        best = f"{run.name}, {split}: the best checkpoint by {by}" if by else ""
        cells = [Cell(run.name, note=note), Cell(split), _number(scalars.get("step"), 0, best)]
        for name, _, decimals in shown:
            note = scalars.get("caveat", "") if name == "bits_per_character" else ""
            cells.append(_number(scalars.get(name), decimals, note))
        rows.append(cells)
    caption = (
        "Every document of the split once, from its start to its end. The distance between bits "
        "per token and the column beside it is what the state is worth."
    )
    return Table("evaluations", "Whole splits", caption, columns, rows)


def folded_if_long(table: Table) -> str:
    content = table_html(table)
    if len(table.rows) <= MANY_ROWS:
        return content
    head = f"<summary>{html.escape(table.title)}: {len(table.rows)} rows</summary>"
    return f"<details>{head}\n{content}</details>\n"


def numbers_table(name: str, numbers: dict) -> Table:
    rows = [[Cell(key.replace("_", " ")), _number(value, 6)] for key, value in numbers.items()]
    return Table(name, "Numbers", "", [Column("", "quantity"), Column("", "value")], rows)


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
    return Table(name, "Table", "", [Column("", key.replace("_", " ")) for key in keys], lines)


def _number(value, decimals, note=""):
    if value is None:
        return Cell("–")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return Cell(str(value))
    whole = isinstance(value, int) or (decimals == 0 and float(value).is_integer())
    whole = whole or value >= 1e6  # a perplexity, then: of bytes, by words
    return Cell(f"{value:,.0f}" if whole else f"{value:,.{decimals}f}", (value,), note)


def excerpts_html(excerpts: list[dict]) -> str:
    """Returns tokens with the text around them and the facts of a study."""
    return f'<div class="excerpts">{"".join(map(_excerpt, excerpts))}</div>'


def marked_html(texts: list[dict]) -> str:
    """Returns texts with marked tokens: each has "title" and "parts", pairs of text and flag."""
    shown = []
    for found in texts:
        parts = (
            f"<mark>{html.escape(str(text))}</mark>" if flag else html.escape(str(text))
            for text, flag in found.get("parts", [])
        )
        title = html.escape(str(found.get("title", "")))
        shown.append(
            f'<blockquote><p class="quiet">{title}</p><div class="text">{"".join(parts)}</div>'
            "</blockquote>\n"
        )
    return f'<div class="excerpts">{"".join(shown)}</div>'


def _excerpt(found):
    before, text, after = (
        html.escape(str(found.get(n) or "")) for n in ("before", "text", "after")
    )
    facts = [f"{found['direction']} {found.get('rank', 0) + 1}"] if "direction" in found else []
    facts += [str(found["title"])] if found.get("title") else []
    facts += [f"token {found['token']:,}"] if "token" in found else []
    if "nats" in found:
        nats = f"{found['nats']:.3f} nats"
        facts.append(
            nats + (f" against {found['other_nats']:.3f}" if "other_nats" in found else "")
        )
    facts += [str(found["kind"])] if found.get("kind") else []
    if "last_seen" in found:
        seen = found["last_seen"]
        ago = "not seen before" if seen is None else f"last seen {seen:,} tokens ago"
        facts.append(ago if seen is None else f"{ago}, {SEEN.get(found['where'], found['where'])}")
    facts += ["title or author recalled"] if found.get("recalled") else []
    kind = html.escape(str(found.get("direction", "")))
    return (
        f'<blockquote><p class="quiet">{html.escape(" · ".join(facts))}</p>'
        f'<div class="text">{before}<mark class="{kind}">{text}</mark>{after}</div></blockquote>\n'
    )


SEEN = {
    "window": "inside the window",
    "segment": "beyond the window, inside the segment",
    "beyond": "beyond the segment",
}
