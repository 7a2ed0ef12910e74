"""Reader of the papers' tables and figures, one TOML file each.

Tables and figures have the attributes of `PaperTable` and `PaperPlot`, with these abbreviations:

    like                        name of a table or figure above, whose attributes count where this
                                one has none
    {NAME} in a caption         the text of that name in [text]
    columns                     `Quantity`s, or names of [columns], which are their headings
    "none" in a rule            None; an array in a rule is a set of values
    rows                        a line each: labels, printed numbers, then the attributes of `rule`;
                                a row without the last has no runs
    rule_of_labels              attributes of every row's rule that are the text of a label
    rows_of                     rows taken from another table: those whose first labels `rows`
                                lists, or that meet `where`; `labels` and `printed` name their cells
    points                      of a figure: the table and the columns that its points are from
    rest = true                 of a figure: the rule `where`

[settings.GROUP."SOURCE"] are `Settings`: `when`, `last`, and an inline table of gin bindings for
each class, with `@NAME` for a reference, `%NAME` for an attribute of the run's position and `%any`
for a value that is not published. `rows` has a line of attributes and bindings instead, then a line
of values for each `Settings`. Later settings of a group replace earlier ones. `own` in a source:
not published, and chosen in configs/.
"""

import functools
import re
import tomllib
from collections.abc import Iterator
from importlib import resources
from typing import Any

from brt.reporting.gin_text import Reference, read_gin
from brt.reporting.papers.form import (
    Curve,
    Paper,
    PaperPlot,
    PaperTable,
    Quantity,
    Row,
    Settings,
    Size,
    number,
)

NAMES = ("block_recurrent", "transformer_xl", "recurrent_memory", "adding_recurrence")


@functools.cache
def read_paper(name: str) -> Paper:
    content = tomllib.loads(toml_text(name))
    settings = {group: _settings(parts) for group, parts in content["settings"].items()}
    raw_tables = _with_names(content["table"])
    tables: dict[str, PaperTable] = {}
    for raw in sorted(raw_tables, key=lambda raw: "rows_of" in raw):
        tables[raw["name"]] = _table(raw, content, settings, tables)
    plots = _with_names(content.get("plot", {}))
    return Paper(
        name,
        content["title"],
        tuple(tables[raw["name"]] for raw in raw_tables),
        tuple(_plot(raw, content, settings, tables) for raw in plots),
        _rule(content.get("where", {})),
        tuple(Size(name, *map(int, rest)) for name, *rest in _lines(content.get("sizes", ""))),
        settings,
    )


def toml_text(name: str) -> str:
    return resources.files(__package__).joinpath(f"{name}.toml").read_text(encoding="utf-8")


def _with_names(entries: dict[str, dict]) -> list[dict]:
    taken = ("like", "rows_of", "rows", "contrasts", "scalars", "rest")
    named = []
    for name, raw in entries.items():
        base = entries[raw["like"]] if "like" in raw else {}
        if "curves" not in raw:  # rows of its own
            base = {key: value for key, value in base.items() if key not in taken}
        named.append({**base, **raw, "name": name})
    return named


def _lines(text: str) -> Iterator[list[str]]:
    for line in text.split("\n"):
        if line:
            yield [cell.strip() for cell in line.split(" |")]


def _caption(text, content):
    for name, sentence in content["text"].items():
        text = text.replace(f"{{{name}}}", sentence)
    return " ".join(text.split())


def _rule(raw: dict[str, Any]) -> dict[str, Any]:
    return {name: _allowed(value) for name, value in raw.items()}


def _allowed(value):
    if isinstance(value, list):
        return set(map(_allowed, value))
    return None if value == "none" else value


def _cell_value(cell: str) -> Any:
    if ", " in cell:
        return set(map(_cell_value, cell.split(", ")))
    if re.fullmatch(r"[\d.]+", cell):
        return float(cell) if "." in cell else int(cell)
    return _allowed(cell)


def _settings(parts) -> tuple[Settings, ...]:
    settings = []
    for source, part in parts.items():
        when, last = _rule(part.pop("when", {})), part.pop("last", False)
        heads, *rows = _lines(part.pop("rows", "")) if "rows" in part else [[]]
        for row in rows:
            cells = {head: cell for head, cell in zip(heads, row, strict=True) if cell}
            rule = {head: _cell_value(cell) for head, cell in cells.items() if "." not in head}
            text = "\n".join(f"{h} = {c}" for h, c in cells.items() if "." in h)
            settings.append(Settings(when | rule, read_gin(text), source, last))
        if part:
            settings.append(Settings(when, dict(_bindings(part)), source, last))
    return tuple(settings)


def _bindings(part: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for owner, values in part.items():
        if isinstance(values, dict):
            yield from ((f"{owner}.{name}", _gin_value(v)) for name, v in values.items())
        else:
            yield owner, values


def _gin_value(value):
    if isinstance(value, list):
        return tuple(map(_gin_value, value))
    if isinstance(value, str) and value.startswith(("@", "%")):
        return Reference(value)
    return None if value == "none" else value


def _table(raw, content, settings, tables) -> PaperTable:
    shared = content.get("columns", {})
    columns = ({"head": c, **shared[c]} if isinstance(c, str) else c for c in raw["columns"])
    quantities = tuple(Quantity(**c | {"where": _rule(c.get("where", {}))}) for c in columns)
    rows = _taken_rows(raw, tables) if "rows_of" in raw else _rows(raw, quantities)
    return PaperTable(
        raw["name"],
        raw["title"],
        _caption(raw["caption"], content),
        tuple(raw["labels"]),
        quantities,
        rows,
        _rule(raw.get("where", {})),
        tuple(raw["rest"]) if "rest" in raw else None,
        tuple(map(tuple, raw.get("contrasts", ()))),
        _caption(raw.get("of_contrasts", ""), content),
        _of_groups(raw, settings),
    )


def _of_groups(raw, settings) -> tuple[Settings, ...]:
    return tuple(part for group in raw.get("settings", ()) for part in settings[group])


def _rows(raw, quantities) -> tuple[Row, ...]:
    heads, of_labels, rule = raw["labels"], raw.get("rule_of_labels", {}), raw.get("rule", [])
    printed = sum(quantity.is_printed for quantity in quantities)
    rows = []
    for cells in _lines(raw.get("rows", "")):
        labels, rest = tuple(cells[: len(heads)]), cells[len(heads) :]
        numbers = tuple(None if cell == "–" else cell for cell in rest[:printed])
        attributes = rest[printed:]
        where = None
        if attributes or (of_labels and not rule):
            by_label = dict(zip(heads, labels))
            where = {name: _cell_value(by_label[head]) for name, head in of_labels.items()}
            where |= {name: _cell_value(cell) for name, cell in zip(rule, attributes) if cell}
        scalars = raw.get("scalars", {}).get(labels[0], {})
        rows.append(Row(labels, numbers, where, {h: name or None for h, name in scalars.items()}))
    return tuple(rows)


def _taken_rows(raw, tables) -> tuple[Row, ...]:
    source, of = tables[raw["rows_of"]["table"]], raw["rows_of"]
    if "rows" in raw:
        by_labels = {row.labels[:3]: row for row in source.rows}
        return tuple(by_labels[tuple(labels)] for labels in _lines(raw["rows"]))
    rows = [row for row in source.rows if row.where and _overlap(of["where"], row.where)]
    return tuple(
        Row(
            tuple(_cell(source, row, name) for name in of["labels"]),
            tuple(_cell(source, row, name) for name in of["printed"]),
            row.where,
        )
        for row in rows
    )


def _cell(table: PaperTable, row: Row, name: str) -> Any:
    """Returns a label, a printed number, its deviation (`± HEAD`), or an attribute of the rule."""
    if name in table.labels:
        return row.labels[table.labels.index(name)]
    if row.where and name in row.where:
        return str(row.where[name])
    heads = [quantity.head for quantity in table.quantities if quantity.is_printed]
    printed = row.printed[heads.index(name.removeprefix("± "))]
    if name.startswith("± "):
        return (printed or "").partition(" ± ")[2] or None
    return printed


def _overlap(rule: dict, other: dict) -> bool:
    def values(value):
        return value if isinstance(value, set) else {value}

    return all(values(rule[name]) & values(other[name]) for name in rule.keys() & other.keys())


def _plot(raw, content, settings, tables) -> PaperPlot:
    common, scalar = _rule(raw.pop("where", {})), raw.pop("scalar", "bits_per_token")
    points, entries = raw.pop("points", None), raw.pop("curves")
    curves = []
    for curve in entries:
        where = common | _rule(curve.get("where", {}))
        if points:
            curve = curve | _points(points | {"y": curve.get("y", points.get("y"))}, where, tables)
        columns = {name: tuple(curve[name]) for name in ("x", "y", "sizes") if name in curve}
        curves.append(Curve(**{"scalar": scalar} | curve | columns | {"where": where}))
    raw |= {"caption": _caption(raw["caption"], content), "settings": _of_groups(raw, settings)}
    raw["rest"] = common if raw.get("rest") else None
    if "y_range" in raw:
        raw["y_range"] = tuple(raw["y_range"])
    raw.pop("like", None)
    return PaperPlot(curves=tuple(curves), **raw)


def _points(points, where, tables) -> dict[str, list]:
    """Returns the points of a curve: those of a table's rows that its rule allows, in order."""
    table = tables[points["table"]]
    chosen = set()
    for row in table.rows:
        labels = dict(zip(table.labels, row.labels))
        if row.where is None or not _overlap(where, table.where | row.where):
            continue
        if points.get("labels", {}).items() <= labels.items():
            x = number(_cell(table, row, points["x"])) / points.get("divisor", 1)
            size = number(_cell(table, row, points["sizes"])) if "sizes" in points else 0
            chosen.add((x, _cell(table, row, points["y"]), size))
    x, y, sizes = map(list, zip(*sorted(chosen)))
    return {"x": x, "y": y} | ({"sizes": sizes} if "sizes" in points else {})


PAPERS = tuple(map(read_paper, NAMES))
