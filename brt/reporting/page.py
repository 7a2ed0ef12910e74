"""The page of a report: figures, tables and texts in one HTML file."""

import json
import re
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from brt.reporting.drawing.plots import Plot, svg
from brt.reporting.drawing.table import Table
from brt.studies.output import SEEN, visible
from brt.studies.study import LN2

HERE = Path(__file__).parent

MANY_ROWS = 40


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
    data = ""
    if documents:
        results = [section for section in sections if section[0] == "results"]
        rest = [section for section in sections if section[0] != "results"]
        sections = [*results, ("reader", "Reader", _file("reader.html")), *rest]
        text = json.dumps({"documents": documents}).replace("<", "\\u003c")
        data = f'<script type="application/json" id="reader-data">{text}</script>'
    items = "".join(f"<li>{_prose(problem)}</li>" for problem in problems)
    return Template(_file("page.html")).substitute(
        title=escape(title),
        style=_file("page.css"),
        links="".join(f'<a href="#{name}">{escape(head)}</a>' for name, head, _ in sections),
        notice=f'<ul class="problems">{items}</ul>' if items else "",
        sections="\n".join(
            f'<section id="{name}"><h2>{escape(head)}</h2>\n{content}</section>'
            for name, head, content in sections
        ),
        data=data,
        script=_file("page.js"),
    )


def _file(name):
    return (HERE / name).read_text(encoding="utf-8")


def _prose(text):
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(text))


def table_html(table: Table) -> str:
    return (
        f"<h3>{escape(table.title)}</h3>\n{table.as_html()}\n"
        f'<p class="caption">{_prose(table.caption)}</p>\n'
    )


def folded_if_long(table: Table) -> str:
    content = table_html(table)
    if len(table.rows) <= MANY_ROWS:
        return content
    return _details(f"{escape(table.title)}: {len(table.rows)} rows", content)


def folded(count: int, what: str, content: str) -> str:
    return _details(f"{count:,} {what}{'s' * (count != 1)}", content)


def _details(summary, content):
    return f"<details><summary>{summary}</summary>\n{content}</details>\n"


def plots_html(plots: list[Plot]) -> str:
    figures = "".join(
        f'<figure id="{escape(plot.name)}"{_kind(plot)}><h3>{escape(plot.title)}</h3>{svg(plot)}'
        + (f"<figcaption>{_prose(plot.caption)}</figcaption>" if plot.caption else "")
        + "</figure>\n"
        for plot in plots
    )
    return f'<div class="plots">\n{figures}</div>\n' if plots else ""


def _kind(plot):
    return ' class="rows"' if getattr(plot, "rows", ()) else ""


def study_html(heading: str, caption: str, study: dict[str, Any]) -> str:
    content = f"<h3>{escape(heading)}</h3>"
    if summary := study.get("summary"):
        content += f'<p class="summary">{escape(summary)}</p>'
    return f'{content}<p class="caption">{escape(caption)}</p>'


def marked_html(texts: list[dict]) -> str:
    """Returns texts with marked tokens: each has "title" and "parts", pairs of text and flag."""
    return _quotes(
        (
            str(entry.get("title", "")),
            "".join(
                f"<mark>{escape(str(text))}</mark>" if flag else escape(str(text))
                for text, flag in entry.get("parts", [])
            ),
        )
        for entry in texts
    )


def excerpts_html(excerpts: list[dict]) -> str:
    return _quotes((" · ".join(_facts(excerpt)), _in_context(excerpt)) for excerpt in excerpts)


def _quotes(quotes):
    shown = "".join(
        f'<blockquote><p class="quiet">{escape(title)}</p><div class="text">{text}</div>'
        "</blockquote>\n"
        for title, text in quotes
    )
    return f'<div class="excerpts">{shown}</div>'


def _in_context(excerpt):
    parts = (escape(str(excerpt.get(part) or "")) for part in ("before", "text", "after"))
    before, text, after = parts
    text = text if text.strip() else visible(text)
    kind = escape(str(excerpt.get("direction", "")))
    return f'{before}<mark class="{kind}">{text}</mark>{after}'


def _facts(excerpt):
    if "direction" in excerpt:
        yield f"{excerpt['direction']} {excerpt.get('rank', 0) + 1}"
    if excerpt.get("title"):
        yield str(excerpt["title"])
    if "token" in excerpt:
        yield f"token {excerpt['token']:,}"
    if "nats" in excerpt:
        other = f" against {excerpt['other_nats'] / LN2:.3f}" if "other_nats" in excerpt else ""
        yield f"{excerpt['nats'] / LN2:.3f}{other} bits"
    if excerpt.get("kind"):
        yield str(excerpt["kind"])
    if "last_seen" in excerpt:
        seen, where = excerpt["last_seen"], excerpt.get("where")
        ago = f"last seen {seen or 0:,} tokens ago, {SEEN.get(where, where)}"
        yield "not seen before" if seen is None else ago
    if excerpt.get("recalled"):
        yield "title or author recalled"
