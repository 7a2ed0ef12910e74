"""The papers' files are complete, and published sizes are those of the models built here."""

import hashlib
import re
from types import SimpleNamespace

import pytest
from paths import ROOT
from published_checks import built

from brt.models.counts import count_parameters
from brt.reporting.paper_positions import paper_position
from brt.reporting.papers.published_tables import PAPERS, TIMES, read_rows

TABLES = {table.name: table for paper in PAPERS for table in paper.tables}
PLOTS = {plot.name: plot for paper in PAPERS for plot in paper.plots}
CHECKED = {
    "block_recurrent": "3a3bd3a135a3f440",
    "transformer_xl": "7a6bf3b5dd80f867",
    "recurrent_memory": "4a5a465fc23b1fb5",
    "adding_recurrence": "98d7146e14df1369",
}
"""First digits of the SHA-256 of the rows and points: they change only on purpose."""


@pytest.mark.parametrize("paper", PAPERS, ids=CHECKED)
def test_printed_numbers_change_only_on_purpose(paper):
    rows = [row.cells for table in paper.tables for row in table.rows]
    points = [[c.name, c.x, c.y, c.sizes] for plot in paper.plots for c in plot.curves]
    text = repr(rows + points)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == CHECKED[paper.name]


def test_every_row_has_numbers_and_every_file_is_of_a_table():
    for table in TABLES.values():
        printed = [quantity.head for quantity in table.quantities if quantity.is_printed]
        for text in (row.cells[head] for row in table.rows for head in printed):
            assert re.match(r"[\d.,]+( ± [\d.]+)?$|–$", text)
        assert re.search(r"Source: \S", table.caption)
    assert len(TABLES) + len(PLOTS) == len(TABLES | PLOTS)  # each writes a file of its name
    kinds = {"papers", "tables", "columns", "contrasts", "figures", "curves", "settings"}
    kinds |= {"sizes", "corpora"}
    files = (ROOT / "brt/reporting/papers").glob("*.csv")
    assert {file.stem for file in files} - kinds == {*TABLES}
    for file, column, names in (
        ("columns", "tables", TABLES),
        ("contrasts", "table", TABLES),
        ("curves", "figure", PLOTS),
        *((file, "paper", CHECKED) for file in ("tables", "figures", "settings")),
    ):
        assert all({*row[column].split()} <= {*names} for row in read_rows(file))


def test_rules_name_attributes_and_settings_have_sources():
    run = SimpleNamespace(paper_settings={"Trainer.segment_length": 8}, corpus="text")
    known = vars(paper_position(run))
    rules = [paper.where for paper in PAPERS]
    for table in TABLES.values():
        rules += [table.where, *(row.where or {} for row in table.rows)]
        rules += [quantity.where for quantity in table.quantities]
        rules.append(dict.fromkeys(table.rest[1:]))
    for plot in PLOTS.values():
        rules += [plot.rest or {}, *(curve.where for curve in plot.curves)]
    settings = [part for paper in PAPERS for parts in paper.settings.values() for part in parts]
    rules += [part.where for part in settings]
    assert {name for rule in rules for name in rule} <= known.keys()
    assert all(part.source and part.bind for part in settings)


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_a_table_that_compares_runs_has_the_settings_behind_it(table):
    scalars = {q.scalar for q in table.quantities if q.is_printed} - {*TIMES}
    assert table.settings or not scalars or all(row.where is None for row in table.rows)


@pytest.mark.parametrize(
    ("name", "published", "more"),
    [
        ("rmt_wt103_150.gin", 151_107_538 + 10 * 410, 410),
        ("rmt_wt103_50.gin", 151_107_538 + 10 * 410, 410),
        ("memtr_wt103_150.gin", 151_107_538 + 10 * 410, 410),
        ("rmt_txl_wt103_150.gin", 151_107_538 + 10 * 410, 410 + 411),
        ("rmt_enwik8_128.gin", 41_055_436 + 20 * 512, 512),
    ],
)
def test_the_count_of_parameters_is_the_published_one(name, published, more):
    corpus = "corpora/enwik8_symbols" if "enwik8" in name else "recipes/wikitext103"
    experiment = built([f"{ROOT}/configs/rmt/{name}+{ROOT}/configs/{corpus}.gin"])
    # More: the BOS vector, and one more word with its bias for the auxiliary loss.
    counts = count_parameters(experiment.model)
    assert counts.embedding + counts.non_embedding == published + more
    assert counts.recurrence == (20 * 512 if "enwik8" in name else 10 * 410)
