"""The pages of results agree with the archived records."""

import csv
import itertools
import math
import re
import shutil

import numpy as np
import pytest
from paths import ROOT

pytest.importorskip("matplotlib", reason='the pages need pip install -e ".[report]"')

from results_page.page import MARKED, NOT_RUN, write_results

FOLDER = ROOT / "docs" / "results"
PAGES = sorted(page.name for page in FOLDER.glob("*.md"))
NOT_ARCHIVED = {"2.148", "2.171", "2.199", "2.200", "2.209"}
"""Losses of runs whose records were not kept, and of a study that is in no table."""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A copy of the folder whose generated text and figures were removed and built again."""
    folder = tmp_path_factory.mktemp("built") / "results"
    shutil.copytree(FOLDER, folder)
    for page in PAGES:
        text = (folder / page).read_text()
        emptied = MARKED.sub(lambda mark: f"<!-- {mark[1]} {mark[2]} -->\n<!-- end -->\n", text)
        (folder / page).write_text(emptied)
    for file in (folder / "figures").glob("*.csv"):
        file.unlink()
        file.with_suffix(".png").unlink()
    return folder, write_results(folder)


def test_the_pages_are_what_the_archived_records_give(built):
    folder, found = built
    assert not found.problems
    for page in PAGES:
        text = (folder / page).read_text()
        assert text == (FOLDER / page).read_text()
        for image in re.findall(r"\]\((\S*?\.png)\)", text):
            assert (folder / image).is_file(), image
        empty = {mark[2] for mark in MARKED.finditer(text) if f"\n{NOT_RUN}\n" in mark[0]}
        assert not empty
    names = [{f.name for f in path.glob("figures/*")} for path in (FOLDER, folder)]
    assert names[0] == names[1]
    for file in (FOLDER / "figures").glob("*.csv"):
        again = folder / "figures" / file.name
        rows = [csv.reader(path.read_text().splitlines()) for path in (file, again)]
        for cells in zip(*rows, strict=True):
            for a, b in zip(*cells, strict=True):  # the last digits depend on SciPy's version
                assert a == b or math.isclose(float(a), float(b), rel_tol=1e-6, abs_tol=1e-9)


def test_the_first_page_and_the_folder_stay_small():
    assert len((FOLDER / "README.md").read_text().split()) <= 2200
    assert sum(f.stat().st_size for f in FOLDER.rglob("*") if f.is_file()) < 8 * 2**20


def test_no_memory_is_above_the_place_that_was_named_last(built):
    rule, *memories = built[1].tables["babilong_facts"].rows
    columns = [number for number, cell in enumerate(rule) if number > 1 and cell.text != "–"]
    assert len(columns) > 6 and len(memories) > 10
    for row in memories:
        for column in columns:
            shares = [float(share) for share in row[column].text.split(" / ") if share != "–"]
            assert max(shares) < float(rule[column].text), row[0].text


def test_runs_of_a_seed_on_files_read_the_same_data(built):
    rows = built[1].tables["files_checksums"].rows
    assert len(rows) > 9 and all(len(row[2].text.split()) == 1 for row in rows)


STUDENT = {3: 4.3027, 5: 2.7764, 6: 2.5706}
"""Student's t of 95 % by the number of seeds."""


def prose():
    """Returns the text of all pages without what the builder writes."""
    return " ".join(MARKED.sub("", (FOLDER / page).read_text()) for page in PAGES)


def interval(values):
    """Returns mean and half of the 95 % interval of some seeds, by Student's t, as text."""
    half = STUDENT[len(values)] * np.std(values, ddof=1) / math.sqrt(len(values))
    return f"{np.mean(values):.3f} ± {half:.3f}"


def test_every_interval_in_the_text_is_of_archived_seeds(built):
    """Each is that of a cell, or of the differences of two cells of one experiment."""
    by_experiment = {}
    for name, table in built[1].tables.items():
        cells = (cell.values for row in table.rows for cell in row if len(cell.values) in STUDENT)
        by_experiment.setdefault(name.partition("_")[0], set()).update(cells)
    computed = set()
    for cells in by_experiment.values():
        computed |= set(map(interval, cells))
        computed |= {interval(np.subtract(a, b)) for a, b in itertools.permutations(cells, 2)
                     if len(a) == len(b)}  # fmt: skip
    told = set(re.findall(r"\d\.\d{3} ± \d\.\d{3}", prose().replace("\n", " ")))
    assert len(told) > 12 and told <= computed


def test_every_number_in_the_text_is_in_a_table_or_a_figure():
    tables = " ".join(mark[0] for page in PAGES
                      for mark in MARKED.finditer((FOLDER / page).read_text()))  # fmt: skip
    files = [*FOLDER.glob("figures/*.csv"), FOLDER / "baselines.csv"]
    drawn = re.findall(r"\d+\.\d+", " ".join(file.read_text() for file in files))
    known = {*re.findall(r"\d+\.\d{3}\b", tables), *(f"{float(text):.3f}" for text in drawn)}
    told = set(re.findall(r"\d+\.\d{3}\b", prose()))
    assert len(told) > 50 and told - known <= NOT_ARCHIVED
