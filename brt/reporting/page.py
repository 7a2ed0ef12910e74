"""The page of a report, from the template page.html: one file that loads nothing.

Parts of a section are pairs of a kind, which page.html lists, and its content.
"""

import functools
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from brt.data.extras import extra_library
from brt.reporting.drawing.plots import chart
from brt.reporting.drawing.table import Table
from brt.studies.output import facts, visible

HERE = Path(__file__).parent
LIBRARIES = "pandas", "altair", "vl_convert", "jinja2"
"""Of the extra `report`."""
MANY_ROWS = 40
Part = tuple[str, Any]


def page(
    title: str,
    sections: list[tuple[str, str, list[Part]]],
    problems: list[str],
    documents: list[dict[str, Any]],
) -> str:
    """Returns the page.

    sections: (anchor, heading, parts) of each. documents: of `reader_documents`; empty: no reader.
    """
    jinja2 = extra_library("jinja2", "brt.report", "report")
    if documents:
        at = sum(name == "results" for name, *_ in sections)
        sections = [*sections[:at], ("reader", "Reader", [("reader", None)]), *sections[at:]]
    environment = jinja2.Environment(
        autoescape=True, loader=jinja2.FileSystemLoader(HERE), undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    safe = functools.partial(environment.call_filter, "safe")

    def specification(plot: Any) -> Any:
        fitted = {"type": "fit-x", "contains": "padding"}
        return chart(plot, width="container", autosize=fitted).to_dict()

    def prose(text: str) -> Any:
        escaped = str(environment.call_filter("escape", text))
        return safe(re.sub(r"`([^`]*)`", r"<code>\1</code>", escaped))

    environment.filters |= {"specification": specification, "prose": prose}
    return environment.get_template("page.html").render(
        title=title,
        sections=sections,
        problems=problems,
        documents=documents,
        library=_library(),
        file=lambda name: (HERE / name).read_text(encoding="utf-8"),
    )


@functools.cache
def _library() -> str:
    alt = extra_library("altair", "brt.report", "report")
    bundle = extra_library("vl_convert", "brt.report", "report").javascript_bundle
    text = bundle(vl_version=".".join(alt.SCHEMA_VERSION.strip("v").split(".")[:2]))
    return text.replace("</script", r"<\/script").replace("<!--", r"<\!--")


def items(parts: Iterable[Part]) -> list[Any]:
    found: list[Any] = []
    for kind, content in parts:
        inner = items(content[1]) if kind == "folded" else content
        found += [content] if kind == "table" else inner if kind in ("plots", "folded") else []
    return found


def folded_if_long(table: Table) -> Part:
    if len(table.rows) <= MANY_ROWS:
        return "table", table
    return "folded", (f"{table.title}: {len(table.rows)} rows", [("table", table)])


def folded(count: int, what: str, *parts: Part) -> Part:
    return "folded", (f"{count:,} {what}{'s' * (count != 1)}", parts)


def excerpts(found: Iterable[dict]) -> Part:
    """Returns the excerpts of a study as texts with a title, and parts that are marked or not."""
    return "texts", [{"title": facts(one), "parts": _in_context(one)} for one in found]


def _in_context(excerpt):
    before, text, after = (excerpt.get(part) or "" for part in ("before", "text", "after"))
    text = text if text.strip() else visible(text)
    return [(before, ""), (text, excerpt.get("direction") or "marked"), (after, "")]
