"""What the Block-Recurrent paper prints, as data: every table, with where each number stands.

Numbers are strings, as printed, so that 3.60 stays 3.60; `number` reads one.

Source: Hutchins et al. 2022, Block-Recurrent Transformers, arXiv:2203.07852.
"""

from typing import NamedTuple

PAPER = "Block-Recurrent Transformers, arXiv:2203.07852"
PG19_TEST_WORDS = 6_966_499  # section 4.5, appendix I.1


class System(NamedTuple):
    """A row of Table 1: bits per token, with bytes bits per byte. None where nothing is printed."""

    name: str
    layers: int
    segment_length: int
    window: int
    step_time: str
    pg19_bytes: str
    pg19_tokens: str
    arxiv: str
    github: str | None


TABLE_1 = (
    System("XL:512", 12, 512, 512, "0.88", "1.01", "3.62 ± 0.01", "1.45", "1.21"),
    System("XL:1024", 12, 1024, 1024, "1.20", "0.997", "3.59 ± 0.01", "1.37", "1.08"),
    System("XL:2048", 12, 2048, 2048, "2.11", "0.990", "3.58 ± 0.01", "1.31", "1.01"),
    System("Slide:12L", 12, 4096, 512, "0.93", "0.989", "3.60", "1.43", "1.19"),
    System("Slide:13L", 13, 4096, 512, "1.00", "0.989", "3.58 ± 0.01", "1.42", "1.17"),
    System("Rec:lstm:dual", 12, 4096, 512, "1.06", "0.985", "3.54 ± 0.01", "1.26", "1.01"),
    System("Rec:lstm:single", 12, 4096, 512, "1.05", "0.962", "3.54 ± 0.01", "1.29", "1.03"),
    System("Rec:lstm:skip", 12, 4096, 512, "1.00", "0.969", "3.56 ± 0.01", "1.31", "1.10"),
    System("Rec:fixed:dual", 12, 4096, 512, "1.01", "0.957", "3.52 ± 0.01", "1.27", "0.991"),
    System("Rec:fixed:single", 12, 4096, 512, "1.02", "0.966", "3.58 ± 0.01", "1.25", "1.00"),
    System("Rec:fixed:skip", 12, 4096, 512, "0.99", "0.952", "3.53 ± 0.01", "1.24", "0.976"),
    System("Feedback:lstm:single", 12, 4096, 512, "1.40", "0.977", "3.50", "1.22", None),
    System("Feedback:fixed:skip", 12, 4096, 512, "1.35", "0.935", "3.49", "1.24", None),
    System("Memorizing Trans. 64k", 12, 512, 512, "1.94", "0.950", "3.53", "1.22", None),
)
"""Average bits per token. Splits: test, GitHub's validation (appendix C)."""


class Perplexity(NamedTuple):
    """A row of Table 2; parameters None where the paper has a dash."""

    model: str
    layers: int
    word_perplexity: str
    parameters: str | None
    vocabulary: str


TABLE_2 = (
    Perplexity("Compressive Transformer", 36, "33.6", None, "32k"),
    Perplexity("Routing Transformer", 22, "33.2", "490M", "98k"),
    Perplexity("Perceiver AR", 60, "28.9", "974.6M", "32k"),
    Perplexity("Block-Recurrent Transformer", 24, "28.46", "650M", "32k"),
    Perplexity("Block-Recurrent Transformer", 24, "26.50", "1.3B", "32k"),
)
"""PG19 test, word level (section 4.5)."""

TABLE_3A = {
    128: {"Rec:fixed:skip": "3.58", "Slide:12L": "3.69"},
    256: {"Rec:fixed:skip": "3.54", "Slide:12L": "3.64"},
    512: {"Rec:fixed:skip": "3.53", "Slide:12L": "3.60"},
}
"""Window length to bits per token, PG19 tokens (appendix D)."""

TABLE_3B = {128: "3.54", 256: "3.535", 512: "3.53", 1024: "3.51", 2048: "3.55"}
"""Number of states to bits per token of Rec:fixed:skip, PG19 tokens, window 512 (appendix D)."""


class Size(NamedTuple):
    """A column of Table 4. The published configs add one plain layer in twelve to the baseline."""

    name: str
    millions: float
    layers: int
    width: int
    num_heads: int
    head_size: int
    feed_forward_size: int
    recurrent: str
    baseline: str


TABLE_4 = (
    Size("40.6M", 40.6, 12, 512, 8, 64, 2048, "3.96", "4.03"),
    Size("81.2M", 81.2, 12, 512, 8, 128, 4096, "3.79", "3.86"),
    Size("162M", 162, 12, 1024, 8, 128, 4096, "3.59", "3.67"),
    Size("325M", 325, 12, 1024, 16, 128, 8192, "3.44", "3.51"),
    Size("650M", 650, 24, 1024, 16, 128, 8192, "3.29", "3.39"),
    Size("1.3B", 1300, 24, 2048, 16, 128, 8192, "3.22", "3.31"),
)
"""Rec:fixed:skip and XL:512:13-layer on PG19, 32k SentencePiece (appendix F; Figure 3).

Dimensions: the size files of google-research/meliad that meet the printed parameter counts.
"""
TABLE_4_ROWS = "Rec:fixed:skip", "XL:512:13-layer"


class VocabularyRow(NamedTuple):
    """A row of Table 5: Rec:fixed:skip on PG19's test split."""

    vocabulary: str
    size: str
    tokens: int
    scale_factor: str
    bits_per_token: str
    word_perplexity: str


TABLE_5 = (
    VocabularyRow("T5", "32k", 10_523_460, "1.5106", "3.525", "40.08"),
    VocabularyRow("LaMDA", "32k", 12_053_681, "1.7302", "3.121", "42.23"),
    VocabularyRow("PG19 STE", "32k", 11_097_364, "1.5930", "3.352", "40.49"),
    VocabularyRow("PG19 SPM", "32k", 10_229_476, "1.4684", "3.647", "40.93"),
    VocabularyRow("PG19 SPM", "128k", 9_638_472, "1.3835", "3.830", "39.37"),
    VocabularyRow("PG19 SPM", "96k", 9_711_259, "1.3940", "3.801", "39.36"),
    VocabularyRow("PG19 SPM", "64k", 9_856_687, "1.4149", "3.766", "40.18"),
    VocabularyRow("PG19 SPM", "32k", 10_229_476, "1.4684", "3.647", "40.93"),
    VocabularyRow("PG19 SPM", "8k", 11_559_455, "1.6593", "3.289", "43.94"),
    VocabularyRow("PG19 SPM", "4k", 12_622_101, "1.8118", "3.021", "44.43"),
    VocabularyRow("PG19 SPM", "1k", 15_865_499, "2.2774", "2.477", "49.91"),
    VocabularyRow("PG19 SPM", "512", 18_124_332, "2.6016", "2.125", "46.16"),
    VocabularyRow("bytes", "256", 41_288_269, "5.9267", "0.960", "51.61"),
)
"""Appendix I.2. SPM 32k is printed twice. Bytes differ from Table 1 (0.960 here, 0.952 there)."""


def number(printed: str) -> float:
    """The number of a printed cell, without its error bar: `3.62 ± 0.01` is 3.62."""
    return float(printed.split("±")[0])


def vocabulary_entries(size: str) -> int:
    """`32k` is 32000."""
    return int(size.removesuffix("k")) * (1000 if size.endswith("k") else 1)
