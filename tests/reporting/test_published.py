"""The published numbers agree with one another and with the configs of this repository."""

import re

import pytest
from paths import ROOT

from brt.evaluation.perplexity import word_level_perplexity
from brt.reporting.paper_positions import PaperPosition
from brt.reporting.papers import block_recurrent as paper
from brt.reporting.papers import recipes
from brt.reporting.papers.block_recurrent import BLOCK_RECURRENT
from brt.reporting.papers.fill import paper_tables
from brt.reporting.papers.form import number

CONFIGS = ROOT / "configs"


@pytest.mark.parametrize("row", paper.TABLE_5.rows, ids=lambda row: "-".join(row.labels))
def test_a_row_of_table_5_follows_from_its_own_counts(row):
    tokens, scale, bits, perplexity = map(number, row.printed)
    assert tokens / paper.PG19_TEST_WORDS == pytest.approx(scale, abs=6e-5)
    found = word_level_perplexity(bits, int(tokens), paper.PG19_TEST_WORDS)
    assert found == pytest.approx(perplexity, abs=0.01)


def test_the_perplexities_of_table_2_follow_from_table_4():
    tokens = next(int(number(r.printed[0])) for r in paper.TABLE_5.rows if "SPM" in r.labels[0])
    for size, row in zip(paper.TABLE_4.rows[-2:], paper.TABLE_2.rows[-2:], strict=True):
        found = word_level_perplexity(number(size.printed[0]), tokens, paper.PG19_TEST_WORDS)
        assert found == pytest.approx(number(row.printed[0]), abs=0.01)


def test_tables_that_share_a_model_print_one_number():
    by_name = {row.labels[0]: row.printed for row in paper.TABLE_1.rows}
    at_512 = paper.TABLE_3A.rows[2]
    for system, printed in zip(("Rec:fixed:skip", "Slide:12L"), at_512.printed, strict=True):
        assert number(by_name[system][2]) == number(printed)
    (same,) = (row for row in paper.TABLE_3B.rows if row.labels == ("512",))
    assert same.printed[0] == at_512.printed[0]


@pytest.mark.parametrize("row", paper.TABLE_1.rows[:-1], ids=lambda row: row.labels[0])
def test_the_config_of_a_row_of_table_1_quotes_the_same_numbers(row):
    stem = row.labels[0].lower().replace(":", "_")
    header = (CONFIGS / f"pg19_{stem}.gin").read_text()
    found = re.search(r"Paper: +([\d.]+) bits per token on test, ([\d.]+) bits per byte", header)
    _, bits_per_byte, bits_per_token, *_ = row.printed
    assert float(found[1]) == number(bits_per_token)
    assert float(found[2]) == number(bits_per_byte)


def test_the_tables_have_the_paper_s_rows_and_a_number_for_every_printed_column():
    assert [len(table.rows) for table in BLOCK_RECURRENT.tables] == [14, 5, 3, 5, 6, 13, 6, 6]
    for table in BLOCK_RECURRENT.tables:
        printed = sum(quantity.is_printed for quantity in table.quantities)
        for row in table.rows:
            assert len(row.labels) == len(table.labels) and len(row.printed) == printed


def test_every_rule_names_what_a_place_has():
    rules = [q.where for t in BLOCK_RECURRENT.tables for q in t.quantities]
    rules += [row.where or {} for t in BLOCK_RECURRENT.tables for row in t.rows]
    rules += [table.where for table in BLOCK_RECURRENT.tables]
    rules += [curve.where for plot in BLOCK_RECURRENT.plots for curve in plot.curves]
    assert {name for rule in rules for name in rule} <= set(PaperPosition._fields)


def test_the_choices_behind_the_numbers_quote_the_tables_they_explain():
    printed = next(r.printed for r in paper.TABLE_1.rows if r.labels[0] == "Rec:fixed:skip")
    _, by_bytes, by_token, arxiv, github = map(number, printed)
    for recipe, bits in (
        (recipes.BYTES, by_bytes),
        (recipes.ARXIV, arxiv),
        (recipes.GITHUB, github),
        (recipes.TOKENS, pytest.approx(by_token, abs=0.0051)),  # 3.525, rounded up
    ):
        assert number(recipe.printed) == bits
    by_vocabulary = {row.labels: row.printed for row in paper.TABLE_5.rows}
    for recipe, labels in ((recipes.TOKENS, ("T5", "32k")),
                           (recipes.SENTENCEPIECE, ("PG19 SPM", "32k"))):  # fmt: skip
        _, _, printed, words = by_vocabulary[labels]
        assert (recipe.printed, recipe.words) == (printed, words)
    assert recipes.SCALING.printed == paper.TABLE_4.rows[2].printed[0]


def test_the_choices_behind_the_numbers_are_those_of_appendix_c():
    rows = {row.labels[0].partition(":")[0]: row.labels[1:] for row in recipes.CHOICES.rows}
    steps, tokens = "500,000", "131,072"
    assert rows == {
        "PG19 tokens": ("Adafactor", "1.0 / sqrt(step)", "1,000", steps, tokens, "T5, 32k", "test"),
        "PG19 bytes": ("Adafactor", "1.0 / sqrt(step)", "1,000", steps, tokens, "bytes", "test"),
        "PG19, its own vocabularies": (
            "Adafactor", "1.0 / sqrt(step)", "1,000", steps, tokens, "PG19 SPM, 32k", "test",
        ),
        "arXiv": (
            "Adafactor", "0.5 / sqrt(step)", "1,000", "500,000, assumed", tokens,
            "LaMDA, 32k (not public; here T5's)", "test",
        ),
        "GitHub": (
            "Adafactor", "cosine, 0.005 to 0.0005, assumed", "1,000", "250,000", "524,288",
            "LaMDA, 32k (not public; here T5's)", "validation",
        ),
        "PG19, sizes": (
            "Adafactor", "cosine, 0.01 to 0.001", "1,000", "500,000, assumed", "131,072, assumed",
            "PG19 SPM, 32k", "test",
        ),
    }  # fmt: skip


def test_on_arxiv_a_longer_window_helps_and_on_pg19_it_does_not():
    differences = next(t for t in paper_tables(BLOCK_RECURRENT, []) if "differences" in t.name)
    row = next(row for row in differences.rows if row[1].text == "XL:2048 − Slide:13L")
    found = dict(zip(differences.heads(), (cell.text for cell in row)))
    assert found["arXiv, paper"] == "−0.11" and found["PG19 tokens, paper"] == "0.00"
