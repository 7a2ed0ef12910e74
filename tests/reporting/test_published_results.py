"""What the page of results says is what the archived records give."""

import csv
import math
import re
import shutil

import numpy as np
import pytest
from paths import ROOT

pytest.importorskip("matplotlib", reason='the page needs pip install -e ".[report]"')

from results_page.page import results, write_results

from brt.reporting.drawing.table import measured

PAGE = ROOT / "docs" / "results"
NORM = ", norm = pre"
ENCODINGS = ", encoding = shaw", ", encoding = absolute"


@pytest.fixture(scope="module")
def published():
    """Tables of the archived runs."""
    return results(PAGE / "runs").tables


def page_row(table, name, value):
    """The cells of a table's row with such a value, by their columns."""
    (row,) = (row for row in (dict(zip(table.heads(), row, strict=True)) for row in table.rows)
              if row[name].text == value)  # fmt: skip
    return row


def test_a_plain_stack_with_a_longer_window_is_below_by_what_the_claim_says(published):
    (own,) = rows_of(published["short_window"], system="Rec:lstm:skip", window="8")
    for window in ("16", "32"):
        (row,) = rows_of(published["short_window"], system="Rec:lstm:skip", window=window)
        below = np.subtract(row["beside it"].values, own["recurrent"].values)
        assert row["seeds"].text == "3"
        assert interval(below) in claim("what a state gives, a longer window")


def interval(differences):
    """Mean and half of the 95 % interval of three seeds, by Student's t, as texts."""
    t_of_two_degrees = 4.3027
    half = t_of_two_degrees * np.std(differences, ddof=1) / math.sqrt(3)
    return f"{np.mean(differences):.3f} ± {half:.3f}"


def test_the_intervals_of_table_1_at_small_scale_are_those_of_three_seeds(published):
    longer = page_row(published["small_time_runs"], "system", "Slide:13L")["bits/byte"].values
    page = (PAGE / "README.md").read_text()
    (tokens,) = re.findall(r"\| recurrence below Slide:13L, equal tokens \|.*", page)
    (time,) = re.findall(r"\| recurrence below Slide:13L, equal time \|.*", page)
    for name in (
        "lstm:skip",
        "fixed:single",
        "fixed:skip",
        "fixed:dual",
        "lstm:dual",
        "lstm:single",
    ):
        row = page_row(published["small_systems"], "system", f"Rec:{name}")
        assert row["seeds"].text == "3" and interval(row["below Slide:13L"].values) in tokens, name
        below = np.subtract(longer, row["bits/byte"].values)
        assert interval(-below if name == "lstm:single" else below) in time, name
        if name not in ("fixed:dual", "lstm:single"):
            assert all(below > 0), name
        if name == "lstm:skip":
            assert interval(row["below Slide:13L"].values) in page and interval(below) in page


def claim(begin):
    """The row of the page's claims that begins so."""
    (row,) = re.findall(rf"\| {re.escape(begin)}.*", (PAGE / "README.md").read_text())
    return row


def test_the_intervals_of_transformer_xl_s_corners_are_those_of_three_seeds(published):
    rows = published["txl_corners_runs"]

    def bits(system):
        return page_row(rows, "system", system)["bits/byte"].values

    relative, shaw, absolute = (bits(f"Baseline:7L{encoding}{NORM}")
                                for encoding in ("", *ENCODINGS))  # fmt: skip
    carried, carried_shaw = (bits(f"Tr-XL:7L{encoding}{NORM}")
                             for encoding in ("", ENCODINGS[0]))  # fmt: skip
    row = claim("Transformer-XL: recurrence and relative positions help")
    for worse, better in (
        (relative, carried),
        (shaw, carried_shaw),
        (absolute, relative),
        (absolute, shaw),
        (relative, shaw),
        (carried, carried_shaw),
    ):
        assert len(worse) == len(better) == 3
        assert interval(np.subtract(worse, better)) in row
    assert all(np.subtract(relative, shaw) > 0) and not all(np.subtract(carried, carried_shaw) > 0)


def rows_of(table, **wanted):
    """The rows of a table whose cells have such texts, each as cells by their columns."""
    rows = (dict(zip(table.heads(), row, strict=True)) for row in table.rows)
    return [row for row in rows if all(row[name].text == text for name, text in wanted.items())]


@pytest.mark.parametrize(
    ("begin", "name", "wanted"),
    [
        ("the shorter the window, the more is gained", "short_window", {"window": "8"}),
        ("the shorter the window, the more is gained", "short_window", {"window": "16"}),
        ("the shorter the window, the more is gained", "short_window", {"window": "32"}),
        ("the same where lines are not wrapped", "short_books", {}),
        ("the same on LaTeX", "short_latex", {}),
        ("the same in pieces of 2,000 instead of bytes", "short_pieces", {}),
        ("the same with the paper's optimizer", "short_gates", {}),
        ("the same on source code in long segments", "code_window", {"window": "8"}),
    ],
)
def test_the_intervals_of_the_claims_are_those_of_three_seeds(published, begin, name, wanted):
    found = claim(begin)
    systems = ("Rec:fixed:skip", "Rec:lstm:skip")
    for one in ("Rec:lstm:skip:6L, layer 4",) if name == "code_window" else systems:
        (row,) = rows_of(published[name], system=one, **wanted)
        assert row["seeds"].text == "3" and interval(row["gain"].values) in found
        worth = interval(row["worth of the state"].values)
        assert name not in ("short_books", "code_window") or worth in found
    (fixed,) = rows_of(published["short_latex"], system="Rec:fixed:skip")
    assert all(gain > 0 for gain in fixed["gain"].values)


def test_the_gain_falls_with_the_window_by_what_the_claim_says(published):
    found = claim("the shorter the window, the more is gained")
    for short, longer in (("8", "16"), ("16", "32")):
        falls = []
        for gate in ("lstm", "fixed"):
            gains_of = [
                rows_of(published["short_window"], system=f"Rec:{gate}:skip", window=window)[0]
                for window in (short, longer)
            ]
            falls.append(interval(np.subtract(*(row["gain"].values for row in gains_of))))
        assert " and ".join(falls) in found


def test_what_clearing_costs_beyond_its_interval_is_said_of_five_systems_of_eight(published):
    found = claim("clearing the state hurts")
    rows = published["small_systems"]
    recurrent = [row for row in (dict(zip(rows.heads(), row, strict=True)) for row in rows.rows)
                 if row["system"].text.startswith(("Rec:", "Feedback:"))]  # fmt: skip
    unclear = []
    for row in recurrent:
        mean, half = map(float, interval(row["worth of the state"].values).split(" ± "))
        assert min(row["worth of the state"].values) > 0
        if mean <= half:
            unclear.append(row["system"].text)
            assert interval(row["worth of the state"].values) in found
    assert sorted(unclear) == ["Feedback:fixed:skip", "Feedback:lstm:single", "Rec:lstm:dual"]
    assert len(recurrent) == 8 and "for five systems of eight" in found


@pytest.mark.parametrize(
    ("task", "segments", "begin", "told"),
    [
        ("copy", "3", "Rec", "copy over 3 and 9: {}"),
        ("copy", "9", "Rec", "and {}; reverse"),
        ("reverse", "4", "Rec", "reverse over 4, {}"),
        ("retrieval", "2", "Rec", "not learned in 5,000 steps ({} and"),
        ("retrieval", "5", "Rec", "and {}, one rate"),
        ("copy", "9", "RMT", "1.000 and {}, Tr-XL"),
        ("reverse", "4", "RMT", "Reverse over 4: RMT {}"),
        ("retrieval", "5", "RMT", "and {}, Tr-XL 1.000"),
        ("retrieval", "5", "Tr-XL", "Tr-XL 1.000 and {}"),
    ],
)
def test_shares_of_characters_right_are_those_of_three_seeds(
    published, task, segments, begin, told
):
    found = rows_of(published["tasks_rmt_tasks"], task=task, segments=segments)
    (cell,) = (row["accuracy, measured"] for row in found if row["model"].text.startswith(begin))
    assert len(cell.values) == 3
    assert told.format(f"{np.mean(cell.values):.3f}") in claim("RMT: copy, reverse, retrieval")


def test_the_worth_of_the_gates_beginnings_is_that_of_three_seeds(published):
    found = claim("gates by their beginning (appendix B)")
    for gate in ("fixed", "lstm"):
        system = f"Rec:{gate}:skip"
        usual, zero, one = (
            page_row(published["short_gates_runs"], "system", system + ending)["bits/byte"].values
            for ending in ("", ", gate_biases = zero", ", gate_biases = one")
        )
        assert len(usual) == len(zero) == len(one) == 3
        for worse, better in ((usual, zero), (one, usual)):
            assert min(np.subtract(worse, better)) > 0  # in every seed
            assert interval(np.subtract(worse, better)) in found


def test_the_intervals_on_held_out_text_are_those_of_three_seeds(published):
    found = claim("held-out text")
    for name in ("short_code_test", "short_books_test"):
        for gate in ("lstm", "fixed"):
            row = page_row(published[name], "system", f"Rec:{gate}:skip")
            assert row["seeds"].text == "3" and interval(row["below Slide:13L"].values) in found
            worth = interval(row["worth of the state"].values)
            assert name != "short_code_test" or worth in found
    best = page_row(published["short_code_test"], "system", "Rec:lstm:skip")
    page = (PAGE / "README.md").read_text()
    assert f"difference is {interval(best['below Slide:13L'].values)}" in page.replace("\n", " ")


@pytest.mark.parametrize(
    ("begin", "worse", "better"),
    [
        ("the fixed gate is at least as good", "Rec:fixed:skip", "Rec:lstm:skip"),
        ("the fixed gate is at least as good", "Rec:fixed:dual", "Rec:lstm:dual"),
        ("the fixed gate is at least as good", "Rec:lstm:single", "Rec:fixed:single"),
        ("skip is at least as good as single", "Rec:lstm:single", "Rec:lstm:skip"),
        ("skip is at least as good as single", "Rec:fixed:skip", "Rec:fixed:single"),
        ("feedback improves", "Rec:lstm:single", "Feedback:lstm:single"),
        ("feedback improves", "Feedback:fixed:skip", "Rec:fixed:skip"),
    ],
)
def test_systems_of_table_1_differ_as_the_claims_say_in_every_seed(published, begin, worse, better):
    bits = (page_row(published["small_systems"], "system", name)["bits/byte"].values
            for name in (worse, better))  # fmt: skip
    below = np.subtract(*bits)
    assert len(below) == 3 and min(below) > 0  # in every seed
    assert interval(below) in claim(begin)


def test_xl_2048_is_below_xl_512_by_what_the_claim_says(published):
    bits = (page_row(published["small_systems"], "system", name)["bits/byte"].values
            for name in ("XL:512", "XL:2048"))  # fmt: skip
    assert interval(np.subtract(*bits)) in claim("recurrence below XL:512")


def test_the_costs_of_a_reset_are_those_of_the_figure(published):
    text = (PAGE / "figures" / "short_code_reach.csv").read_text()
    distance, cost = "tokens between the reset and the scored block", "cost, bits per token"
    costs = {int(line[distance]): float(line[cost]) for line in csv.DictReader(text.splitlines())
             if line["line"] == "rec_lstm_skip-github-seed0, state"}  # fmt: skip
    page = (PAGE / "README.md").read_text().replace("\n", " ")
    told = f"{costs[8]:.3f} bits a byte 8 bytes later, {costs[32]:.3f} after 32 bytes"
    assert f"{told}, {costs[256]:.3f} after 256" in page
    assert f"{costs[64]:.2f} bits after 64 bytes and {costs[256]:.2f} after 256" in page
    row = page_row(published["short_code_memory"], "run", "rec_lstm_skip-github-seed0")
    swapped, cleared = (
        row[name].values[0] for name in ("another document's costs", "cleared costs")
    )
    assert f"document costs {swapped:.3f} bits a byte, and a cleared one {cleared:.3f}" in page


def test_every_section_that_the_page_names_is_there():
    page = (PAGE / "README.md").read_text()
    titles = re.findall(r"^##+ (.*)$", page, re.M)
    anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
    named = re.findall(r"\]\(#([^)]+)\)", page)
    assert named and set(named) <= anchors


def test_after_600_steps_no_system_of_table_1_is_ahead_and_after_1800_all_but_one():
    text = (PAGE / "figures" / "small_training.csv").read_text()
    ahead = {(line["line"].split(",")[0], line["steps"]): float(line["gain, bits per token"]) > 0
             for line in csv.DictReader(text.splitlines())}  # fmt: skip
    assert not any(found for (_, steps), found in ahead.items() if steps == "600")
    behind = [name for (name, steps), found in ahead.items() if steps == "1800" and not found]
    assert behind == ["Rec:lstm:single"]


def test_the_systems_that_the_page_s_summary_names_have_the_bits_of_its_table(published):
    text = (PAGE / "README.md").read_text().split("## In short")[1].split("\n## ")[0]
    named = dict(
        re.findall(
            r"((?:Rec|Slide|XL):[\w:]+) (?:with\s[\w\s]+)?(?:beside it \()?(\d\.\d{3})\b", text
        )
    )
    assert {"Rec:lstm:skip", "Rec:lstm:dual", "Slide:13L"} <= set(named)
    for name, bits in named.items():
        cell = page_row(published["small_systems"], "system", name)["bits/byte"]
        assert measured(cell.values, 3).text.split(" ±")[0] == bits, name


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
