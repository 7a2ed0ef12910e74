"""Tables of the Block-Recurrent paper as data, and the figures that are made of them.

Source: Hutchins et al. 2022, Block-Recurrent Transformers, arXiv:2203.07852.
"""

from typing import NamedTuple

from brt.reporting.papers.form import Contrast, Curve, Paper, PaperPlot, PaperTable, Quantity, Row
from brt.reporting.papers.recipes import CHOICES, by_corpus, by_size

PG19_TEST_WORDS = 6_966_499  # section 4.5, appendix I.1
COMPARABLE = (
    "Numbers of other corpora, sizes or budgets than the paper's can be compared with one another "
    "only: bits per token depend on text, vocabulary, schedule, batch and size (appendix C.3)."
)


class Size(NamedTuple):
    """A column of Table 4. The baseline has one plain layer in twelve more."""

    name: str
    millions: float
    layers: int
    width: int
    num_heads: int
    head_size: int
    feed_forward_size: int


SIZES = (
    Size("40.6M", 40.6, 12, 512, 8, 64, 2048),
    Size("81.2M", 81.2, 12, 512, 8, 128, 4096),
    Size("162M", 162, 12, 1024, 8, 128, 4096),
    Size("325M", 325, 12, 1024, 16, 128, 8192),
    Size("650M", 650, 24, 1024, 16, 128, 8192),
    Size("1.3B", 1300, 24, 2048, 16, 128, 8192),
)
"""Dimensions: the size files of google-research/meliad that meet the printed parameter counts."""

SYSTEM = {"size": "162M", "states": {None, 512}, "gate_biases": {None, "small"}}
"""What Table 1's systems share (section 4.1)."""
RECURRENT = {
    "system": "Rec:fixed:skip",
    "window": 512,
    "states": 512,
    "gate_biases": "small",
}
BASELINE = {"system": {"XL:512:13-layer", "XL:512:26-layer"}}
SIZED = {"size": {size.name for size in SIZES}}
PG19 = {"PG19 bytes", "PG19 tokens", "PG19 SPM"}


def _system(name, segment_length, window, *printed):
    where = {"system": name, "segment_length": segment_length, "window": window}
    return Row((name, str(segment_length), str(window)), printed, where)


TABLE_1 = PaperTable(
    "table_1",
    "Table 1: bits per token of every system",
    "Average bits per token, less is better (bytes: bits per byte), and the time of a training "
    "step relative to Slide:13L, measured relative to the baseline of `brt.benchmark`. Error bars "
    "are deviations over seeds, rounded up. Test split; GitHub validation. "
    f"{COMPARABLE} Source: Table 1",
    ("model", "segment", "window"),
    (
        Quantity("step time", "step_time", 2),
        Quantity("", decimals=3, is_printed=False),
        Quantity("PG19 bytes", where={"corpus": "PG19 bytes"}),
        Quantity("PG19 tokens", where={"corpus": "PG19 tokens"}),
        Quantity("arXiv", where={"corpus": "arXiv"}),
        Quantity("GitHub", where={"corpus": "GitHub"}),
    ),
    (
        _system("XL:512", 512, 512, "0.88", "1.01", "3.62 ± 0.01", "1.45", "1.21"),
        _system("XL:1024", 1024, 1024, "1.20", "0.997", "3.59 ± 0.01", "1.37", "1.08"),
        _system("XL:2048", 2048, 2048, "2.11", "0.990", "3.58 ± 0.01", "1.31", "1.01"),
        _system("Slide:12L", 4096, 512, "0.93", "0.989", "3.60", "1.43", "1.19"),
        _system("Slide:13L", 4096, 512, "1.00", "0.989", "3.58 ± 0.01", "1.42", "1.17"),
        _system("Rec:lstm:dual", 4096, 512, "1.06", "0.985", "3.54 ± 0.01", "1.26", "1.01"),
        _system("Rec:lstm:single", 4096, 512, "1.05", "0.962", "3.54 ± 0.01", "1.29", "1.03"),
        _system("Rec:lstm:skip", 4096, 512, "1.00", "0.969", "3.56 ± 0.01", "1.31", "1.10"),
        _system("Rec:fixed:dual", 4096, 512, "1.01", "0.957", "3.52 ± 0.01", "1.27", "0.991"),
        _system("Rec:fixed:single", 4096, 512, "1.02", "0.966", "3.58 ± 0.01", "1.25", "1.00"),
        _system("Rec:fixed:skip", 4096, 512, "0.99", "0.952", "3.53 ± 0.01", "1.24", "0.976"),
        _system("Feedback:lstm:single", 4096, 512, "1.40", "0.977", "3.50", "1.22", None),
        _system("Feedback:fixed:skip", 4096, 512, "1.35", "0.935", "3.49", "1.24", None),
        _system("Memorizing Trans. 64k", 512, 512, "1.94", "0.950", "3.53", "1.22", None),
    ),
    SYSTEM,
    rest=("segment_length", "window"),
    contrasts=(
        Contrast("Recurrence, or one more layer?", "Rec:fixed:skip", "Slide:13L"),
        Contrast("Recurrence, or a window four times as long?", "Rec:fixed:skip", "XL:2048"),
        Contrast("A longer window, or gradients across blocks?", "XL:2048", "Slide:13L"),
        Contrast("Gradients across blocks, or none?", "Slide:12L", "XL:512"),
        Contrast("Recurrence, or retrieval?", "Rec:fixed:skip", "Memorizing Trans. 64k"),
        Contrast("Feedback to every layer, or not?", "Feedback:fixed:skip", "Rec:fixed:skip"),
    ),
    of_contrasts="A question may have different answers on different text: a longer window helps "
    "on arXiv, not on PG19.",
    settings=by_corpus,
)

TABLE_2 = PaperTable(
    "table_2",
    "Table 2: word-level perplexity on PG19",
    "Word-level perplexity on PG19's test split, less is better: exp of the summed loss over "
    f"{PG19_TEST_WORDS:,} words. The other systems differ in vocabulary, parameters, optimizer, "
    "schedule and budget, so their order says little of their architectures (appendix C.3). "
    "Source: Table 2",
    ("model", "layers", "parameters", "vocabulary"),
    (Quantity("word-level perplexity", "word_level_perplexity", 2),),
    (
        Row(("Compressive Transformer", "36", "–", "32k"), ("33.6",), None),
        Row(("Routing Transformer", "22", "490M", "98k"), ("33.2",), None),
        Row(("Perceiver AR", "60", "974.6M", "32k"), ("28.9",), None),
        Row(("Block-Recurrent Transformer", "24", "650M", "32k"), ("28.46",), {"size": "650M"}),
        Row(("Block-Recurrent Transformer", "24", "1.3B", "32k"), ("26.50",), {"size": "1.3B"}),
    ),
    {"system": "Rec:fixed:skip", "corpus": "PG19 SPM", "gate_biases": "small"},
    settings=by_size,
)

TABLE_3A = PaperTable(
    "table_3a",
    "Table 3a: window length",
    "Bits per token when the window shrinks. The recurrent model should lose less than the sliding "
    f"window. Published: PG19 tokens. {COMPARABLE} Source: Table 3 (a)",
    ("window",),
    (
        Quantity("Rec:fixed:skip", where={"system": "Rec:fixed:skip"}),
        Quantity("Slide:12L", where={"system": "Slide:12L"}),
    ),
    (
        Row(("128",), ("3.58", "3.69"), {"window": 128}),
        Row(("256",), ("3.54", "3.64"), {"window": 256}),
        Row(("512",), ("3.53", "3.60"), {"window": 512}),
    ),
    SYSTEM | {"system": {"Rec:fixed:skip", "Slide:12L"}},
    settings=by_corpus,
)

TABLE_3B = PaperTable(
    "table_3b",
    "Table 3b: number of states",
    "Bits per token by the number of state vectors, window 512. Published: PG19 tokens; best at "
    f"1,024, worse at 2,048. {COMPARABLE} Source: Table 3 (b)",
    ("states",),
    (Quantity("Rec:fixed:skip"),),
    (
        Row(("128",), ("3.54",), {"states": 128}),
        Row(("256",), ("3.535",), {"states": 256}),
        Row(("512",), ("3.53",), {"states": 512}),
        Row(("1024",), ("3.51",), {"states": 1024}),
        Row(("2048",), ("3.55",), {"states": 2048}),
    ),
    {"size": "162M", "system": "Rec:fixed:skip", "window": 512, "gate_biases": "small"},
    settings=by_corpus,
)

TABLE_4 = PaperTable(
    "table_4",
    "Table 4: size of the model",
    "Bits per token at six sizes, plotted in Figure 3. Recurrence should be worth about twice the "
    "parameters at the larger sizes. Rows are named by the published parameter counts. Published: "
    f"PG19, 32k SentencePiece. {COMPARABLE} Source: Table 4",
    ("parameters",),
    (Quantity("Rec:fixed:skip", where=RECURRENT), Quantity("XL:512:13-layer", where=BASELINE)),
    (
        Row(("40.6M",), ("3.96", "4.03"), {"size": "40.6M"}),
        Row(("81.2M",), ("3.79", "3.86"), {"size": "81.2M"}),
        Row(("162M",), ("3.59", "3.67"), {"size": "162M"}),
        Row(("325M",), ("3.44", "3.51"), {"size": "325M"}),
        Row(("650M",), ("3.29", "3.39"), {"size": "650M"}),
        Row(("1.3B",), ("3.22", "3.31"), {"size": "1.3B"}),
    ),
    settings=by_size,
)


def _vocabulary(name, size, *printed, label=None):
    return Row((label or name, size), printed, {"vocabulary": f"{name} {size}"})


TABLE_5 = PaperTable(
    "table_5",
    "Table 5: vocabularies",
    "Rec:fixed:skip on PG19's test split. The scale factor is tokens a word; word-level perplexity "
    "is 2 to the bits per token times it. Larger vocabularies need fewer tokens of more bits each "
    "(Figure 7). Bytes have 0.960 here and 0.952 in Table 1, and SPM 32k stands twice, as printed. "
    "Source: Table 5",
    ("vocabulary", "size"),
    (
        Quantity("tokens", "tokens", 0),
        Quantity("scale factor", "tokens_per_word", 4),
        Quantity("bits/token", "bits_per_token", 3),
        Quantity("word-level perplexity", "word_level_perplexity", 2),
    ),
    (
        _vocabulary("T5", "32k", "10,523,460", "1.5106", "3.525", "40.08"),
        _vocabulary("substitute", "32k", "12,053,681", "1.7302", "3.121", "42.23",
                    label="LaMDA (not public; measured: a substitute)"),
        _vocabulary("PG19 STE", "32k", "11,097,364", "1.5930", "3.352", "40.49"),
        _vocabulary("PG19 SPM", "32k", "10,229,476", "1.4684", "3.647", "40.93"),
        _vocabulary("PG19 SPM", "128k", "9,638,472", "1.3835", "3.830", "39.37"),
        _vocabulary("PG19 SPM", "96k", "9,711,259", "1.3940", "3.801", "39.36"),
        _vocabulary("PG19 SPM", "64k", "9,856,687", "1.4149", "3.766", "40.18"),
        _vocabulary("PG19 SPM", "32k", "10,229,476", "1.4684", "3.647", "40.93"),
        _vocabulary("PG19 SPM", "8k", "11,559,455", "1.6593", "3.289", "43.94"),
        _vocabulary("PG19 SPM", "4k", "12,622,101", "1.8118", "3.021", "44.43"),
        _vocabulary("PG19 SPM", "1k", "15,865,499", "2.2774", "2.477", "49.91"),
        _vocabulary("PG19 SPM", "512", "18,124,332", "2.6016", "2.125", "46.16"),
        _vocabulary("bytes", "256", "41,288,269", "5.9267", "0.960", "51.61"),
    ),
    SYSTEM | RECURRENT | {"corpus": PG19},
    settings=by_corpus,
)  # fmt: skip


def entries(size: str) -> int:
    """`32k` is 32000."""
    return int(size.removesuffix("k")) * (1000 if size.endswith("k") else 1)


def _sizes_of_table_4(column) -> tuple[tuple[float, ...], tuple[str, ...]]:
    return tuple(size.millions for size in SIZES), tuple(r.printed[column] for r in TABLE_4.rows)


def _sizes_of_table_5(column) -> tuple[tuple[float, ...], tuple[str, ...]]:
    rows = {entries(r.labels[1]): r for r in TABLE_5.rows if r.labels[0] == "PG19 SPM"}
    return tuple(sorted(rows)), tuple(rows[size].printed[column] for size in sorted(rows))


GATES = PaperTable(
    "gate_biases",
    "How the gates begin, and whether the state is used",
    "Share of runs, over seeds, whose loss on held-out text grows by a hundredth or more when the "
    "state is cleared before every segment. The paper has no numbers: it found that zero biases "
    "hardly move under Adafactor, and that biases of one make the model ignore its state early. "
    "Source: section 3.4 and appendix B",
    ("gate", "biases begin"),
    (
        Quantity("share that use the state", "uses_state", 2, is_printed=False),
        Quantity("bits/token", "bits_per_token", 3, is_printed=False),
    ),
    tuple(
        Row(
            (gate, begin),
            (),
            {"system": {f"Rec:{gate}:{a}" for a in ("dual", "single", "skip")}, "gate_biases": key},
        )
        for gate in ("fixed", "lstm")
        for key, begin in (
            ("small", "N(0, 0.1²), ±1 outside"),
            ("zero", "0"),
            ("one", "keep 1, take 0"),
        )
    ),
)


OWN_SENTENCEPIECE = {
    "system": "Rec:fixed:skip",
    "vocabulary_family": {"PG19 SPM", "SentencePiece"},
}
FIGURE_3 = PaperPlot(
    "figure_3",
    "Figure 3: scaling",
    "Bits per token against parameters in millions (measured: without embeddings), logarithmic. "
    "Where the lower curve lies left of the upper one by a factor of two, recurrence is worth "
    "twice the parameters. Source: Figure 3 and Table 4",
    "parameters",
    "parameters, millions",
    "bits per token",
    (
        Curve("Rec:fixed:skip", *_sizes_of_table_4(0), SIZED | RECURRENT),
        Curve("XL:512:13-layer", *_sizes_of_table_4(1), SIZED | BASELINE),
    ),
)
FIGURE_7 = PaperPlot(
    "figure_7",
    "Figure 7: size of the vocabulary",
    "SentencePiece vocabularies: a larger one needs fewer tokens a word (right axis), and more "
    "bits for each (left). Source: Figure 7 and Table 5",
    "vocabulary_size",
    "vocabulary, entries",
    "bits per token",
    (
        Curve("bits/token", *_sizes_of_table_5(2), OWN_SENTENCEPIECE),
        Curve("tokens/word", *_sizes_of_table_5(1), OWN_SENTENCEPIECE, "tokens_per_word", True),
    ),
    second_label="tokens per word",
)

BLOCK_RECURRENT = Paper(
    "block_recurrent",
    "Block-Recurrent Transformers, arXiv:2203.07852",
    (TABLE_1, TABLE_2, TABLE_3A, TABLE_3B, TABLE_4, TABLE_5, CHOICES, GATES),
    (FIGURE_3, FIGURE_7),
    about={"model": "BlockRecurrentTransformer", "task": None},
    where={"model": "BlockRecurrentTransformer", "task": None},
)
