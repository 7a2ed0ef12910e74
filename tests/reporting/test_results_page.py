"""Pages of results: corrections of p and marks; test_archived_results has the numbers."""

import pytest
from fabricated_runs import make_run

pytest.importorskip("altair", reason='the page needs pip install -e ".[report]"')

from results_page import page
from results_page.page import fill, results
from results_page.tables import holm

from brt.reporting.archive import pack


def test_holm_multiplies_the_smallest_p_by_the_number_of_tests():
    from scipy.stats import ttest_1samp

    tested = [(1.0, 1.1, 1.2), (1.0, 2.0, 9.0), (5.0,), (-1.0, 1.5, 0.2)]
    alone = [ttest_1samp(tested[number], 0).pvalue for number in (0, 1, 3)]
    first, second, last = 3 * alone[0], 2 * alone[1], alone[2]
    assert alone == sorted(alone)
    assert holm(tested) == pytest.approx([first, second, None, max(second, last)])


def test_a_mark_is_filled_with_its_table_or_says_none_was_run(tmp_path, monkeypatch):
    scores = {"step": 10**9, "bits_per_byte": 2.0}
    run = make_run(
        tmp_path / "run", "small/map_rec+corpora/text", evaluations={"validation": scores}
    )
    pack(run, tmp_path / "runs" / "map" / "run.tar.bz2")
    specs = tmp_path / "tables.toml"
    lines = ["[rates]", "[figure]"]
    for name, rows in (("one", "map/Rec*"), ("two", "none/*")):
        lines += [f"[table.{name}]", f'rows = ["{rows}"]', 'columns = ["bits"]']
    specs.write_text("\n".join(lines))
    monkeypatch.setattr(page, "SPECS", specs)
    found = results(tmp_path)
    marks = [f"<!-- table {name} -->\nold\n<!-- end -->\n" for name in ("one", "two")]
    text = fill("Words.\n".join(marks), found)
    assert fill(text, found) == text and "old" not in text
    shown, other = text.split("Words.\n")
    assert " 2.000 |" in shown and "Not run." not in shown
    assert other == "<!-- table two -->\nNot run.\n<!-- end -->\n"
    unclosed = "<!-- table one -->\nWords.\n" + marks[1]
    with pytest.raises(ValueError, match="<!-- table one --> has no <!-- end -->"):
        fill(unclosed, found)
