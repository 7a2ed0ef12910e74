"""The papers' files are complete, and their numbers agree with one another."""

import hashlib
import re

import pytest
from paths import ROOT
from published_checks import read

from brt.evaluation.perplexity import word_level_perplexity
from brt.models.counts import count_parameters
from brt.reporting.paper_positions import PaperPosition, flops_per_token, visible_context
from brt.reporting.papers.form import TIMES, number
from brt.reporting.papers.reading import NAMES, PAPERS, read_paper, toml_text

TABLES = {table.name: table for paper in PAPERS for table in paper.tables}
PLOTS = {plot.name: plot for paper in PAPERS for plot in paper.plots}
PG19_TEST_WORDS = 6_966_499
CHECKED = {
    "block_recurrent": "e2995b4ab292dcd6",
    "transformer_xl": "6db03fb798c2b543",
    "recurrent_memory": "ab38554e26715beb",
    "adding_recurrence": "14e509aa77d09420",
}
"""First digits of the SHA-256 of the printed rows: a number changes only on purpose."""


def printed(table, *labels):
    """The printed cells of the row whose labels begin so."""
    return next(r.printed for r in TABLES[table].rows if r.labels[: len(labels)] == labels)


@pytest.mark.parametrize("name", NAMES)
def test_printed_numbers_change_only_on_purpose(name):
    rows = re.findall(r"^rows = '''\n(.*?)'''", toml_text(name), re.M | re.S)
    numbers = re.sub(r" +", " ", "\n".join(rows))
    assert hashlib.sha256(numbers.encode()).hexdigest()[:16] == CHECKED[name]


def test_every_row_has_a_label_and_a_number_for_every_column():
    for table in TABLES.values():
        columns = sum(quantity.is_printed for quantity in table.quantities)
        for row in table.rows:
            assert len(row.labels) == len(table.labels) and len(row.printed) == columns
            assert all(number(text) for text in row.printed if text)
        assert re.search(r"Source: \S", table.caption)
    assert len(TABLES) + len(PLOTS) == len(TABLES | PLOTS)  # each writes a file of its name


def test_rules_name_attributes_of_a_position_and_settings_have_sources():
    rules = [paper.where for paper in PAPERS]
    for table in TABLES.values():
        rules += [table.where, *(row.where or {} for row in table.rows)]
        rules += [quantity.where for quantity in table.quantities]
        rules.append(dict.fromkeys(table.rest or ()))
    for plot in PLOTS.values():
        rules += [plot.rest or {}, *(curve.where for curve in plot.curves)]
    settings = [part for paper in PAPERS for parts in paper.settings.values() for part in parts]
    rules += [part.when for part in settings]
    assert all(hasattr(PaperPosition, name) for rule in rules for name in rule)
    assert all(part.source and part.bind for part in settings)


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_a_table_that_compares_runs_has_the_settings_behind_it(table):
    scalars = {q.scalar for q in table.quantities if q.is_printed} - {*TIMES}
    assert table.settings or not scalars or all(row.where is None for row in table.rows)


# Block-Recurrent Transformers.


@pytest.mark.parametrize("row", TABLES["table_5"].rows, ids=lambda row: "-".join(row.labels))
def test_a_row_of_table_5_follows_from_its_own_counts(row):
    tokens, scale, bits, perplexity = map(number, row.printed)
    assert tokens / PG19_TEST_WORDS == pytest.approx(scale, abs=6e-5)
    follows = word_level_perplexity(bits, int(tokens), PG19_TEST_WORDS)
    assert follows == pytest.approx(perplexity, abs=0.01)


def test_tables_that_share_a_model_print_one_number():
    (tokens, *_) = printed("table_5", "PG19 SPM", "32k")
    for size in ("650M", "1.3B"):
        (bits, _) = printed("table_4", size)
        follows = word_level_perplexity(number(bits), int(number(tokens)), PG19_TEST_WORDS)
        (perplexity,) = next(r.printed for r in TABLES["table_2"].rows if size in r.labels)
        assert follows == pytest.approx(number(perplexity), abs=0.01)
    for system, bits in zip(("Rec:fixed:skip", "Slide:12L"), printed("table_3a", "512")):
        assert number(printed("table_1", system)[2]) == number(bits)
    assert printed("table_3b", "512") == printed("table_3a", "512")[:1]


def test_the_choices_behind_the_numbers_quote_the_tables_and_the_settings():
    rows = {row.labels[0].partition(":")[0]: row for row in TABLES["choices"].rows}
    _, by_bytes, _, arxiv, github = printed("table_1", "Rec:fixed:skip")
    for name, bits in (("PG19 bytes", by_bytes), ("arXiv", arxiv), ("GitHub", github)):
        assert rows[name].printed[0] == bits
    assert rows["PG19 tokens"].printed == printed("table_5", "T5")[2:]
    assert rows["PG19, its own vocabularies"].printed == printed("table_5", "PG19 SPM")[2:]
    assert rows["PG19, sizes"].printed[0] == printed("table_4", "162M")[0]
    settings = read_paper("block_recurrent").settings
    common = settings["training"][0].bind
    of = {part.when.get("corpus"): part.bind for part in settings["by_corpus"]}
    of |= {name: {} for name in ("PG19, its own vocabularies",)}
    of["PG19, sizes"] = settings["by_size"][0].bind
    for name, row in rows.items():
        bind = common | of[name]
        assert row.labels[4].startswith(f"{bind['Trainer.steps']:,}")
        assert row.labels[5].startswith(f"{bind['Trainer.tokens_per_step']:,}")
        rates = [bind["rsqrt.multiplier"]]
        if bind["Trainer.schedule"] == "@cosine":
            rates = [bind["cosine.maximum"], bind["cosine.minimum"]]
        assert re.findall(r"[\d.]+", row.labels[2]) == list(map(str, rates))


def test_points_of_figures_are_those_of_their_tables():
    curves = {curve.name: curve for curve in PLOTS["figure_3"].curves}
    assert curves["XL:512:13-layer"].x == (40.6, 81.2, 162, 325, 650, 1300)
    assert curves["Rec:fixed:skip"].y == tuple(r.printed[0] for r in TABLES["table_4"].rows)
    sizes, words = PLOTS["figure_7"].curves
    assert sizes.x == words.x == (512, 1000, 4000, 8000, 32_000, 64_000, 96_000, 128_000)
    assert (sizes.y[4], words.y[4]) == ("3.647", "1.4684")


# Transformer-XL and the Recurrent Memory Transformer.


def test_tables_quote_the_rows_that_they_share():
    for row in TABLES["rmt_table_2"].rows:
        assert row in TABLES["rmt_table_5"].rows
    same = printed("txl_table_1", "Transformer-XL Standard")[1:]
    assert printed("rmt_table_5", "Tr-XL (paper)", "150", "150") == same
    assert TABLES["rmt_table_4"].rows[0].printed == printed(
        "txl_table_2", "12-layer Transformer-XL"
    )
    for row in TABLES["txl_table_8"].rows[:2]:
        (same,) = (r for r in TABLES["txl_table_5"].rows if r.where == row.where)
        assert (same.printed[1], same.printed[0], same.printed[2]) == row.printed


def test_labels_of_rmt_follow_from_the_rule_of_their_row():
    for name, layers in (("rmt_table_4", 12), ("rmt_table_5", 16)):
        for row in (row for row in TABLES[name].rows if row.where):
            where = row.where
            memory, tokens = where["memory"], where["memory_tokens"]
            carried = layers * memory + (0 if where["system"] == "MemTr" else tokens)
            names = ("system", "segment_length", "memory", "bptt_depth")
            visible = visible_context(*(where[name] for name in names))
            shown = "+".join(str(n) for n in (memory, tokens) if n) or "0"
            assert row.labels[1:] == (
                shown, str(where["segment_length"]), f"{carried:,}", str(visible or "–")
            )  # fmt: skip


def test_more_memory_and_depth_are_better_but_for_the_row_the_caption_names():
    rows = {r.labels[:3]: number(r.printed[0]) for r in TABLES["rmt_table_5"].rows}
    worse = []
    for (model, memory, segment), perplexity in rows.items():
        if model.startswith("RMT BPTT-"):
            shallower = rows.get((f"RMT BPTT-{int(model[-1]) - 1}", memory, segment), perplexity)
            worse += [(model, memory, segment)] * (perplexity > shallower)
    assert worse == [("RMT BPTT-2", "25", "50")]


def built(name, *bindings):
    corpus = "corpora/enwik8_symbols" if "enwik8" in name else "recipes/wikitext103"
    files = [f"{ROOT}/configs/rmt/{name}+{ROOT}/configs/{corpus}.gin"]
    return read(files, bindings).experiment


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
    # More: the BOS vector, and one more word with its bias for the auxiliary loss.
    counts = count_parameters(built(name).model)
    assert counts.embedding + counts.non_embedding == published + more
    assert counts.recurrence == (20 * 512 if "enwik8" in name else 10 * 410)


def test_a_depth_beyond_the_segments_of_a_step_is_refused():
    bindings = "Trainer.reread_segments = 0", "Trainer.bptt_depth = 4"
    with pytest.raises(ValueError, match=r"bptt_depth = 4 .*segments_per_step = 5"):
        built("rmt_wt103_150.gin", *bindings)


# Adding Recurrence to Pretrained Transformers.


@pytest.mark.parametrize("row", TABLES["arpt_table_2"].rows, ids=lambda row: row.labels[0])
def test_flops_and_waste_follow_from_the_overlap(row):
    overlap = row.where["evaluation_overlap"]
    assert flops_per_token(300, overlap) == pytest.approx(float(row.labels[1]), rel=0.01)
    assert row.labels[2] == f"{overlap / 300:.1%}"


def test_the_claims_of_section_5_hold_for_the_printed_numbers_but_one():
    def perplexities(name, overlap):
        return list(map(number, printed("arpt_table_2", f"{name}, overlap {overlap}")))

    def better(recurrent, baseline):
        pairs = zip(perplexities("recurrent", recurrent), perplexities("baseline", baseline))
        return {a < b for a, b in pairs}

    assert better(0, 30) == better(5, 50) == {True}
    assert better(5, 75) == {False}
