"""What the page of results says is what the archived records give."""

import csv
import itertools
import math
import re
import shutil

import numpy as np
import pytest
from paths import ROOT

pytest.importorskip("matplotlib", reason='the page needs pip install -e ".[report]"')

from results_page.page import results, write_results

PAGE = ROOT / "docs" / "results"


def test_the_page_is_what_the_archived_records_give(tmp_path):
    shutil.copytree(PAGE, tmp_path / "results")
    page = tmp_path / "results" / "README.md"
    # Every number between marks, and of every figure, is taken away before.
    emptied, count = re.subn(r"(<!-- (table|figure) .* -->\n)(.*\n)*?(<!-- end -->)", r"\1\4",
                             page.read_text())  # fmt: skip
    page.write_text(emptied)
    assert count
    for file in (tmp_path / "results").glob("figures/*"):
        file.unlink()
    write_results(tmp_path / "results")
    assert page.read_text() == (PAGE / "README.md").read_text()
    images = re.findall(r"\]\((.*?\.png)\)", page.read_text())
    assert images and all((tmp_path / "results" / image).is_file() for image in images)
    for kind in ("csv", "png"):
        names = [{f.name for f in folder.glob(f"figures/*.{kind}")}
                 for folder in (PAGE, tmp_path / "results")]  # fmt: skip
        assert names[0] == names[1]
    for file in (PAGE / "figures").glob("*.csv"):
        found = tmp_path / "results" / "figures" / file.name
        rows = [csv.reader(path.read_text().splitlines()) for path in (file, found)]
        for cells in zip(*rows, strict=True):
            for a, b in zip(*cells, strict=True):  # the last digits depend on SciPy's version
                assert a == b or math.isclose(float(a), float(b), rel_tol=1e-6, abs_tol=1e-9)
    assert sum(f.stat().st_size for f in PAGE.rglob("*") if f.is_file()) < 8 * 2**20


def interval(values):
    """Returns mean and half of the 95 % interval of three seeds, by Student's t, as text."""
    t_of_two_degrees = 4.3027
    half = t_of_two_degrees * np.std(values, ddof=1) / math.sqrt(3)
    return f"{np.mean(values):.3f} ± {half:.3f}"


def test_every_interval_in_the_text_is_of_archived_seeds():
    """Each is that of a cell, or of the differences of two cells of one experiment."""
    by_experiment = {}
    for name, table in results(PAGE / "runs").tables.items():
        cells = (cell.values for row in table.rows for cell in row if len(cell.values) == 3)
        by_experiment.setdefault(name.partition("_")[0], set()).update(cells)
    computed = set()
    for cells in by_experiment.values():
        computed |= set(map(interval, cells))
        computed |= {interval(np.subtract(a, b)) for a, b in itertools.permutations(cells, 2)}
    page = (PAGE / "README.md").read_text()
    text = re.sub(r"<!-- (table|figure) .* -->\n(.*\n)*?<!-- end -->", "", page)
    told = set(re.findall(r"\d\.\d{3} ± \d\.\d{3}", text.replace("\n", " ")))
    assert len(told) > 50 and told <= computed
