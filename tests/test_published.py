"""The published numbers agree with one another and with the configs of this repository."""

import re
from pathlib import Path

import pytest

from brt.reporting import published as paper

CONFIGS = Path(__file__).parent.parent / "configs"


def within_rounding(row):
    """Word-level perplexities that the printed bits, within half their last digit, allow."""
    decimals = len(row.bits_per_token.split(".")[1])
    words = paper.PG19_TEST_WORDS
    bits, half = float(row.bits_per_token), 0.5 * 10.0**-decimals
    return [2 ** (b * row.tokens / words) for b in (bits - half, bits, bits + half)]


@pytest.mark.parametrize("row", paper.TABLE_5, ids=lambda row: f"{row.vocabulary}-{row.size}")
def test_a_row_of_table_5_follows_from_its_own_counts(row):
    assert row.tokens / paper.PG19_TEST_WORDS == pytest.approx(float(row.scale_factor), abs=6e-5)
    assert within_rounding(row)[1] == pytest.approx(float(row.word_perplexity), abs=0.01)


def test_the_perplexities_of_table_2_follow_from_table_4():
    tokens = next(row.tokens for row in paper.TABLE_5 if row.size == "32k" and "SPM" in row[0])
    for size, row in zip(paper.TABLE_4[-2:], paper.TABLE_2[-2:], strict=True):
        found = 2 ** (float(size.recurrent) * tokens / paper.PG19_TEST_WORDS)
        assert found == pytest.approx(float(row.word_perplexity), abs=0.01)


def test_tables_that_share_a_model_print_one_number():
    by_name = {row.name: row for row in paper.TABLE_1}
    for system in ("Rec:fixed:skip", "Slide:12L"):
        printed = by_name[system].pg19_tokens
        assert paper.number(paper.TABLE_3A[512][system]) == paper.number(printed)
    assert paper.TABLE_3B[512] == paper.TABLE_3A[512]["Rec:fixed:skip"]


@pytest.mark.parametrize("row", paper.TABLE_1[:-1], ids=lambda row: row.name)
def test_the_config_of_a_row_of_table_1_quotes_the_same_numbers(row):
    stem = row.name.lower().replace(":", "_")
    header = (CONFIGS / f"pg19_{stem}.gin").read_text()
    found = re.search(r"Paper: +([\d.]+) bits per token on test, ([\d.]+) bits per byte", header)
    assert float(found[1]) == paper.number(row.pg19_tokens)
    assert float(found[2]) == paper.number(row.pg19_bytes)


def test_the_tables_have_the_paper_s_rows():
    assert [len(t) for t in (paper.TABLE_1, paper.TABLE_2, paper.TABLE_4, paper.TABLE_5)] == [
        14,
        5,
        6,
        13,
    ]
    assert len({row.name for row in paper.TABLE_1}) == 14
