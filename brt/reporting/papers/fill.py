"""Fills a paper's tables and figures with measured numbers."""

import math
from collections.abc import Iterable

from brt.reporting.collect import PROPERTIES, Group
from brt.reporting.drawing.plots import Line, Plot
from brt.reporting.drawing.rounding import mean_and_spread
from brt.reporting.drawing.table import (
    NOT_RUN,
    PUBLISHED,
    Cell,
    Column,
    Table,
    measured,
    published,
)
from brt.reporting.papers.differences import differences
from brt.reporting.papers.form import (
    TIMES,
    Curve,
    Paper,
    PaperPlot,
    PaperTable,
    Quantity,
    Row,
    fits,
    number,
    published_settings,
)
from brt.reporting.step_times import StepTime

MEASURED = "measured"
FRONTIER_COLOUR = 6


def paper_tables(
    paper: Paper, groups: list[Group], step_times: dict[str, StepTime] | None = None
) -> list[Table]:
    tables, groups = [], [group for group in groups if fits(group.position, paper.where)]
    printing = [t for t in paper.tables if any(q.is_printed for q in t.quantities)]
    placed = {id(group) for table in printing for group in _of_rows(table, groups)}
    rest = [group for group in groups if id(group) not in placed]
    for table in paper.tables:
        others = [] if table.rest is None else rest
        filled = _filled(table, groups, others, step_times or {})
        tables.append(filled._replace(caption=f"{filled.caption} of {paper.title}."))
        if table.contrasts:
            tables.append(_differences(table, filled))
    return tables


def _of_rows(table: PaperTable, groups):
    return [g for g in groups if any(fits(g.position, table.where, r.where) for r in table.rows)]


def _filled(table: PaperTable, groups, rest, step_times):
    shown = _of_rows(table, groups)
    rest = [g for g in rest if any(_has(g, quantity) for quantity in table.quantities)]
    runs_here = table.rest is not None or any(row.where is not None for row in table.rows)
    columns = [Column("", label) for label in table.labels]
    measures = []
    for quantity in table.quantities:
        corpora = _corpora(table, quantity, shown + rest) if runs_here else []
        measures.append((quantity, corpora))
        if quantity.is_printed:
            columns.append(Column(quantity.head, PUBLISHED))
        for corpus in corpora:
            head = quantity.head or corpus
            columns.append(Column(head, MEASURED if corpus in (None, head) else corpus))
    rows = []
    for row in table.rows:
        fitting = [group for group in shown if fits(group.position, table.where, row.where)]
        for variant, members in _variants(fitting, measures).items():
            label = f"{row.labels[0]}, {variant}" if variant else row.labels[0]
            cells = _cells(measures, row, members, step_times, table)
            rows.append([*map(Cell, (label, *row.labels[1:])), *cells])
    nothing = (None,) * sum(quantity.is_printed for quantity in table.quantities)
    for group in rest:
        row = Row((), nothing, {"system": group.position.system})
        cells = _cells(measures, row, [group], step_times)
        rows.append([*map(Cell, _rest_labels(group, rest, table)), *cells])
    return Table(table.name, table.title, table.caption, columns, rows)


def _rest_labels(group, rest, table):
    """Returns the labels of a run without a row, unique within its corpus."""

    def labels(one):
        return [one.label, *(str(getattr(one.position, name)) for name in table.rest or ())]

    own = labels(group)
    for other in rest:
        if (
            other is not group
            and labels(other) == own
            and other.position.corpus == group.position.corpus
        ):
            if change := group.apart_from(other):
                own[0] += f", {change}"
            break
    return own


def _variants(groups, measures) -> dict[str, list[Group]]:
    """Returns the groups of a row by their variants, so that none share a cell."""
    variants: dict[str, list[Group]] = {}
    for group in groups:
        variant = group.variant
        if others := [o for o in variants.get(variant, ()) if _share_a_cell(group, o, measures)]:
            variant = group.apart_from(others[0])
        variants.setdefault(variant, []).append(group)
    return variants or {"": []}


def _share_a_cell(group, other, measures):
    return group.position.corpus == other.position.corpus and any(
        _has(group, quantity) and _has(other, quantity)
        for quantity, _ in measures
        if quantity.scalar not in PROPERTIES
    )


def _has(group, quantity):
    return (
        quantity.scalar not in TIMES
        and fits(group.position, quantity.where)
        and bool(group.quantity(quantity).values)
    )


def _corpora(table, quantity, groups):
    if quantity.scalar in TIMES or "corpus" in table.where | quantity.where:
        return [None]
    named = {q.where.get("corpus") for q in table.quantities}
    measured = [g.position.corpus for g in groups if fits(g.position, quantity.where)]
    corpora = [corpus for corpus in dict.fromkeys(measured) if corpus not in named]
    nothing_printed = not any(q.is_printed for q in table.quantities)
    return corpora or ([None] if quantity.is_printed or nothing_printed else [])


def _cells(measures, row: Row, groups, step_times, table: PaperTable | None = None):
    cells, printed = [], iter(row.printed)
    for quantity, corpora in measures:
        if quantity.is_printed:
            cells.append(published(next(printed)))
        scalar = row.scalars.get(quantity.head, quantity.scalar)
        for corpus in corpora:
            rule = quantity.where | ({"corpus": corpus} if corpus else {})
            group = next((group for group in groups if fits(group.position, rule)), None)
            if row.where is None or scalar is None:
                cells.append(published(None))
            elif scalar in TIMES:
                time = step_times.get(row.where["system"])
                values, note = ([time.ratio], time.note) if time else ([], "")
                cells.append(measured(values, quantity.decimals, note))
            elif group:
                cell = group.quantity(quantity._replace(scalar=scalar))
                if table and cell.values and scalar not in PROPERTIES:
                    cell = _compared(cell, group, table, table.where | row.where | rule)
                cells.append(cell)
            else:
                cells.append(Cell(NOT_RUN))
    return cells


def _compared(cell: Cell, group: Group, table: PaperTable, rule: dict) -> Cell:
    if not table.settings:  # nothing printed to compare with
        return cell
    expected = published_settings(table.settings, group.position)
    lines = [x for run in group.runs for x in differences(run, group.position, expected, rule)]
    if any(run.is_scaled for run in group.runs):
        lines = [f"a model of {group.dimensions}", *lines]
    if not lines:
        return cell
    note = f"settings other than the published number's: {'; '.join(dict.fromkeys(lines))}"
    return cell._replace(note="; ".join(filter(None, [cell.note, note])))


def _differences(table: PaperTable, filled: Table) -> Table:
    rows = {row[0].text: row for row in reversed(filled.rows)}
    heads = {q.head for q in table.quantities if q.scalar in TIMES}
    first = len(table.labels)
    at = [i for i, c in enumerate(filled.columns) if i >= first and c.group not in heads]
    columns = [Column("", "question"), Column("", "rows"), *(filled.columns[i] for i in at)]
    lines = []
    for question, row, other in table.contrasts:
        pairs = [(rows[row][i], rows[other][i]) for i in at if {row, other} <= rows.keys()]
        lines.append([Cell(question), Cell(f"{row} − {other}"), *(_minus(*p) for p in pairs)])
    return Table(
        f"{table.name}_differences",
        f"Differences within {table.title.split(':')[0]}",
        "The first row less the second: below zero the first is better. "
        f"{table.of_contrasts}".rstrip(),
        columns,
        lines,
    )


def _minus(one: Cell, other: Cell) -> Cell:
    if one.values and other.values:
        difference = sum(one.values) / len(one.values) - sum(other.values) / len(other.values)
        note = "; ".join(filter(None, dict.fromkeys((one.note, other.note))))
        return Cell(_signed(difference, 3), (difference,), note=note)
    try:
        decimals = min(len(cell.text.split("±")[0].strip().split(".")[1]) for cell in (one, other))
        return Cell(_signed(number(one.text) - number(other.text), decimals))
    except (ValueError, IndexError):
        return Cell(NOT_RUN if NOT_RUN in (one.text, other.text) else "–")


def _signed(value, decimals):
    text = f"{value:+.{decimals}f}".replace("-", "−")
    return text if text.strip("+−0.") else text[1:]


def paper_plots(paper: Paper, groups: list[Group]) -> list[Plot]:
    groups = [group for group in groups if fits(group.position, paper.where)]
    return [_plot(paper, plot, groups) for plot in paper.plots]


def _plot(paper, plot: PaperPlot, groups):
    lines = [
        Line(f"{curve.name}, {plot.source}", [*curve.x], [*map(number, curve.y)], "published",
             curve.on_second_axis, sizes=curve.sizes and [*curve.sizes])
        for curve in plot.curves
    ]  # fmt: skip
    of_source = {plot.source: [pair for line in lines for pair in zip(line.x, line.y)]}
    for colour, curve in enumerate([*plot.curves, *_other_systems(plot, groups)]):
        points = _points(plot, curve, groups)
        for series, series_points in points.items():
            ordered = sorted(series_points, key=lambda point: point[:3])
            _, x, y, spreads, sizes = map(list, zip(*ordered))
            lines.append(
                Line(
                    f"{curve.name}, {series}",
                    x,
                    y,
                    "points",
                    curve.on_second_axis,
                    errors=None if None in spreads else spreads,
                    sizes=sizes if plot.size else None,
                    colour=colour if len(points) == 1 else None,
                )
            )
            of_source.setdefault(series, []).extend(zip(x, y))
    if plot.frontier:
        lines += _frontiers(of_source)
    return Plot(
        plot.name,
        plot.title,
        f"{plot.caption} of {paper.title}.",
        plot.x_label,
        plot.y_label,
        lines,
        log_x=plot.log_x,
        second_label=plot.second_label,
        y_range=plot.y_range,
    )


def _other_systems(plot, groups):
    if plot.rest is None:
        return []
    named = {curve.name for curve in plot.curves}
    systems = (group.position.system for group in groups if fits(group.position, plot.rest))
    return [
        Curve(system, (), (), plot.rest | {"system": system}, plot.curves[0].scalar)
        for system in dict.fromkeys(systems)
        if system not in named
    ]


def _points(plot, curve, groups) -> dict[str, list]:
    """Returns (order, x, mean, spread, size) of the measured points of a curve, by series."""
    points: dict[str, list] = {}
    for group in groups:
        if not fits(group.position, curve.where):
            continue
        values = group.quantity(Quantity("", curve.scalar, split=plot.split)).values
        x = group.at(plot.x)
        if values and x is not None and math.isfinite(x):
            first = group.at(plot.order) if plot.order else x
            point = first, x, *mean_and_spread(values), plot.size and group.at(plot.size)
            points.setdefault(_series(group, plot), []).append(point)
    return points


def frontier(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Returns the Pareto frontier of (cost, perplexity) points, by rising cost."""
    best: list[tuple[float, float]] = []
    for cost, perplexity in sorted(points):
        if not best or perplexity < best[-1][1]:
            best.append((cost, perplexity))
    return best


def _frontiers(points: dict[str, list]) -> list[Line]:
    lines = []
    for colour, (source, both) in enumerate(points.items(), FRONTIER_COLOUR):
        x, y = map(list, zip(*frontier(both)))
        lines.append(Line(f"frontier, {source}", x, y, "frontier", colour=colour))
    return lines


def _series(group, plot):
    """Returns the name of a measured curve, its corpus; vocabularies of one corpus share it."""
    if group.position.task:
        return "measured"
    if plot.x == "vocabulary_size":
        return group.position.corpus.rstrip("0123456789k")  # books_spm1k, books_spm8k
    return group.position.corpus
