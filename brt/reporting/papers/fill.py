"""Fills papers' tables and figures with measurements."""

import re
from collections.abc import Iterable
from types import SimpleNamespace

from brt.reporting.collect import PROPERTIES, Group
from brt.reporting.drawing.plots import Line, Plot
from brt.reporting.drawing.rounding import mean_and_spread
from brt.reporting.drawing.table import NOT_RUN, PUBLISHED, Cell, Column, Table, measured
from brt.reporting.papers.differences import differences
from brt.reporting.papers.published_tables import TIMES, Paper, Quantity, fits, published_settings
from brt.reporting.step_times import StepTimes

PRINTED = object()
"""Replaces a corpus for the column of the paper's numbers."""
FRONTIER_COLOUR = 6


def paper_tables(
    paper: Paper, groups: list[Group], step_times: StepTimes | None = None
) -> dict[str, Table]:
    """Returns a paper's tables by their names."""
    groups = [group for group in groups if fits(group.position, paper.where)]
    printing = [table for table in paper.tables if any(q.is_printed for q in table.quantities)]
    placed = {id(g) for t in printing for row in t.rows for g in groups if _is_of(t, row, g)}
    without_row = [group for group in groups if id(group) not in placed]
    tables = []
    for table in paper.tables:
        caption = f"{table.caption} of {paper.title}."
        filled = _filled(table, groups, without_row, step_times or {})
        tables.append(Table(table.name, table.title, caption, *filled))
        if table.contrasts:
            tables.append(_contrasts(table, tables[-1]))
    return {table.name: table for table in tables}


def _is_of(table, row, group):
    return fits(group.position, table.where, row.where)


def _filled(table, groups, without_row, step_times):
    rows = [(row, [g for g in groups if _is_of(table, row, g)]) for row in table.rows]
    rest: dict[tuple, list[Group]] = {}  # by the labels of their own row
    for group in without_row if table.rest else ():
        if any(_has(group, quantity) for quantity in table.quantities):
            labels = group.label, *(str(group.at(name) or "–") for name in table.rest[1:])
            rest.setdefault(labels, []).append(group)
    for labels, members in rest.items():
        where = {"system": members[0].position.system}
        rows.append((SimpleNamespace(labels=labels, cells={}, where=where), members))
    shown = [group for group in groups if any(group in members for _, members in rows)]
    heads, columns = [Column("", label) for label in table.labels], []
    for quantity in table.quantities:
        heads += [Column(quantity.head, PUBLISHED)] * quantity.is_printed
        columns += [(quantity, PRINTED)] * quantity.is_printed
        for corpus in _corpora(table, quantity, shown):
            head = quantity.head or corpus
            heads.append(Column(head, "measured" if corpus in (None, head) else corpus))
            columns.append((quantity, corpus))
    lines = []
    for row, members in rows:
        for variant, same in _variants(row, members, table.quantities).items():
            first = f"{row.labels[0]}, {variant}" if variant else row.labels[0]
            cells = [_cell(table, row, *column, same, step_times) for column in columns]
            lines.append([*map(Cell, (first, *row.labels[1:])), *cells])
    return heads, lines


def _corpora(table, quantity, groups):
    if not table.rest and all(row.where is None for row in table.rows):
        return []  # of runs that brt does not have
    if quantity.scalar in TIMES or "corpus" in table.where | quantity.where:
        return [None]
    named = {other.where.get("corpus") for other in table.quantities}
    measured = [g.position.corpus for g in groups if fits(g.position, quantity.where)]
    corpora = [corpus for corpus in dict.fromkeys(measured) if corpus not in named]
    nothing_printed = not any(other.is_printed for other in table.quantities)
    return corpora or [None] * (quantity.is_printed or nothing_printed)


def _cell(table, row, quantity, corpus, groups, step_times):
    if corpus is PRINTED:
        return Cell(row.cells.get(quantity.head) or "–")
    scalar = row.cells.get(f">{quantity.head}") or quantity.scalar
    if row.where is None or scalar == "–":
        return Cell("–")
    if scalar in TIMES:
        ratio, note = step_times.get(row.where["system"], (None, ""))
        return measured([ratio] if ratio else [], quantity.decimals, note)
    for group in groups:
        if fits(group.position, quantity.where) and corpus in (None, group.position.corpus):
            cell = group.quantity(quantity._replace(scalar=scalar))
            if row.cells and table.settings and cell.values and scalar not in PROPERTIES:
                return _compared(cell, group, table, table.where | row.where | quantity.where)
            return cell
    return Cell(NOT_RUN)


def _compared(cell, group, table, decided):
    expected = published_settings(table.settings, group.position)
    lines = [f"a model of {group.dimensions}"] * any(run.is_scaled for run in group.runs)
    lines += [x for run in group.runs for x in differences(run, group.position, expected, decided)]
    if not lines:
        return cell
    note = f"settings other than the published number's: {'; '.join(dict.fromkeys(lines))}"
    return cell._replace(note="; ".join(filter(None, [cell.note, note])))


def _has(group, quantity):
    has_scalar = quantity.scalar not in TIMES and fits(group.position, quantity.where)
    return has_scalar and bool(group.quantity(quantity).values)


def _variants(row, groups, quantities) -> dict[str, list[Group]]:
    """Returns the groups that share a line of a row, by what its label adds to that of the row.

    The first ones of a published row add nothing.
    """
    compared = [quantity for quantity in quantities if quantity.scalar not in PROPERTIES]
    variants: dict[str, list[Group]] = {}
    for number, group in enumerate(groups):
        rivals = (
            other
            for other in (groups[:number] if row.cells else groups)
            if other is not group and other.position.corpus == group.position.corpus
            if any(_has(group, quantity) and _has(other, quantity) for quantity in compared)
        )
        other = next(rivals, None)
        variants.setdefault(group.apart_from(other) if other else "", []).append(group)
    return variants or {"": []}


def _contrasts(table, filled: Table) -> Table:
    times = {quantity.head for quantity in table.quantities if quantity.scalar in TIMES}
    columns = list(enumerate(filled.columns))[len(table.labels) :]
    columns = [(i, column) for i, column in columns if column.group not in times]
    rows = {row[0].text: row for row in reversed(filled.rows)}
    lines = []
    for one in table.contrasts:
        row, other = rows.get(one.row), rows.get(one.other)
        cells = [_minus(row[i], other[i]) if row and other else Cell("–") for i, _ in columns]
        lines.append([Cell(one.question), Cell(f"{one.row} − {one.other}"), *cells])
    return Table(
        f"{table.name}_differences",
        f"Differences within {table.title.split(':')[0]}",
        "The first row less the second: below zero the first is better.",
        [Column("", "question"), Column("", "rows"), *(column for _, column in columns)],
        lines,
    )


def _minus(one: Cell, other: Cell) -> Cell:
    if NOT_RUN in (one.text, other.text):
        return Cell(NOT_RUN)
    are_measured = bool(one.values and other.values)
    texts = [cell.text.split("±")[0].strip() for cell in (one, other)]
    if not are_measured and not all(re.fullmatch(r"\d+\.\d+", text) for text in texts):
        return Cell("–")
    first, second = (cell.values or [float(text)] for cell, text in zip((one, other), texts))
    difference = sum(first) / len(first) - sum(second) / len(second)
    decimals = 3 if are_measured else min(len(text.split(".")[1]) for text in texts)
    text = f"{difference:+.{decimals}f}".replace("-", "−")
    note = "; ".join(filter(None, dict.fromkeys((one.note, other.note))))
    text = text if text.strip("+−0.") else text[1:]
    return Cell(text, (difference,) * are_measured, note * are_measured)


def paper_plots(paper: Paper, groups: list[Group]) -> dict[str, Plot]:
    """Returns a paper's figures by their names."""
    groups = [group for group in groups if fits(group.position, paper.where)]
    return {plot.name: _plot(paper, plot, groups) for plot in paper.plots}


def _plot(paper, plot, groups):
    lines: list[Line] = []
    drawn: dict[str, list] = {}  # points by source: the paper, and each corpus

    def draw(curve, source, x, y, style, **options):
        lines.append(Line(f"{curve.name}, {source}", x, y, style, bool(curve.axis), **options))
        drawn.setdefault(source, []).extend(zip(x, y))

    for curve in plot.curves:
        draw(curve, plot.source, curve.x, curve.y, "published", sizes=curve.sizes or None)
    for number, curve in enumerate([*plot.curves, *_other_systems(plot, groups)]):
        series = _series(plot, curve, groups)
        for corpus, points in series.items():
            _, x, y, spreads, sizes = map(list, zip(*sorted(points, key=lambda point: point[:3])))
            errors = None if None in spreads else spreads
            colour = number if len(series) == 1 else None
            shown = {"errors": errors, "sizes": sizes if plot.size else None, "colour": colour}
            draw(curve, corpus, x, y, "points", **shown)
    for colour, (source, points) in enumerate(drawn.items(), FRONTIER_COLOUR):
        if plot.frontier:
            x, y = map(list, zip(*frontier(points)))
            lines.append(Line(f"frontier, {source}", x, y, "frontier", colour=colour))
    return Plot(
        plot.name,
        plot.title,
        f"{plot.caption} of {paper.title}.",
        plot.x_label,
        plot.y_label,
        lines,
        log_x=bool(plot.log_x),
        second_label=plot.second_label,
        y_range=plot.y_range,
    )


def _other_systems(plot, groups):
    if plot.rest is None:
        return []
    first, named = vars(plot.curves[0]), {curve.name for curve in plot.curves}
    systems = dict.fromkeys(g.position.system for g in groups if fits(g.position, plot.rest))
    return [
        SimpleNamespace(**first | {"name": system, "where": plot.rest | {"system": system}})
        for system in systems
        if system not in named
    ]


def _series(plot, curve, groups) -> dict[str, list]:
    """Returns (order, x, mean, spread, size) of the points of a curve, by corpus."""
    series: dict[str, list] = {}
    quantity = Quantity("", curve.scalar or "bits_per_token", split=plot.split or None)
    for group in groups:
        if not fits(group.position, curve.where):
            continue
        values, x = group.quantity(quantity).values, group.at(plot.x)
        if values and x is not None:
            first = group.at(plot.order) if plot.order else x
            point = first, x, *mean_and_spread(values), plot.size and group.at(plot.size)
            corpus = "measured" if group.position.task else group.position.corpus
            if plot.x == "vocabulary_size":  # books_spm1k and books_spm8k are one corpus
                corpus = corpus.rstrip("0123456789k")
            series.setdefault(corpus, []).append(point)
    return series


def frontier(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Returns the Pareto frontier of (cost, perplexity), by rising cost."""
    best: list[tuple[float, float]] = []
    for cost, perplexity in sorted(points):
        if not best or perplexity < best[-1][1]:
            best.append((cost, perplexity))
    return best
