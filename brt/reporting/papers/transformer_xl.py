"""Tables of the Transformer-XL paper, as data.

Source: Dai et al. 2019, Transformer-XL: Attentive Language Models Beyond a Fixed-Length Context,
arXiv:1901.02860, in the version of its anonymous submission. The later version and the released
code report 18.3 on WikiText-103, 21.8 on One Billion Word and 1.08 on text8.
"""

from typing import NamedTuple

from brt.reporting.papers.form import Paper, PaperTable, Quantity, Row
from brt.reporting.papers.recipes_transformer_xl import transformer_xl
from brt.studies.attention_length import BEST_LENGTH, BEST_PERPLEXITY

TITLE = "Transformer-XL, arXiv:1901.02860"


class Size(NamedTuple):
    """A model of the released scripts; `name` is what the tables print of its parameters."""

    name: str
    layers: int
    width: int
    num_heads: int
    head_size: int
    feed_forward_size: int


SIZES = (
    Size("151M", 16, 410, 10, 41, 2100),
    Size("257M", 18, 1024, 16, 64, 4096),
    Size("41M", 12, 512, 8, 64, 2048),
    Size("277M", 24, 1024, 8, 128, 3072),
    Size("0.46B", 18, 1024, 8, 128, 4096),
    Size("128M", 12, 384, 8, 48, 1744),
)
"""WikiText-103 standard and large (284.1M by count), enwik8 base and large, One Billion Word base
(356M by count with tied tables, 466M untied). The last one's dimensions are not published: they
are those of configs/transformer_xl/ablation.gin, chosen to meet the count."""

ABLATION = "128M"
STANDARD = {"size": "151M", "memory": 150, "segment_length": 150, "steps": 200_000}
PARAMETERS = Quantity("parameters, M", "all_parameters", 1, is_printed=False)
COMPARABLE = "Numbers of other corpora, sizes or budgets can be compared with one another only."


def _others(*rows):
    """Systems of other papers: labels, then what is printed of each."""
    return tuple(Row((name, size), printed, None) for name, size, *printed in rows)


def _ours(name, printed_size, *printed, **where):
    return Row((name, printed_size), printed, {"system": "Tr-XL"} | where)


TABLE_1 = PaperTable(
    "txl_table_1",
    "Transformer-XL, Table 1: WikiText-103",
    "Word-level perplexity. The released script of the large model has 284M parameters, not the "
    f"printed 257M. {COMPARABLE} Source: Table 1",
    ("model", "parameters"),
    (
        Quantity("validation", "perplexity", 2, split="validation"),
        Quantity("test", "perplexity", 2, split="test"),
        PARAMETERS,
    ),
    (
        *_others(
            ("Grave et al. (2016b), LSTM", "–", None, "48.7"),
            ("Bai et al. (2018), TCN", "–", None, "45.2"),
            ("Dauphin et al. (2016), GCNN-8", "–", None, "44.9"),
            ("Grave et al. (2016b), LSTM + neural cache", "–", None, "40.8"),
            ("Dauphin et al. (2016), GCNN-14", "–", None, "37.2"),
            ("Merity et al. (2018), 4-layer QRNN", "151M", "32.0", "33.0"),
        ),
        _ours("Transformer-XL Standard", "151M", "23.1", "24.0", **STANDARD),
        _ours("Transformer-XL Large", "257M", "18.2", "18.9", size="257M"),
    ),
    {"corpus": "WikiText-103"},
    settings=transformer_xl,
)

TABLE_2 = PaperTable(
    "txl_table_2",
    "Transformer-XL, Table 2: enwik8",
    "Test bits per character. The dimensions of the 18-layer model are not published; the length "
    f"is 784 in the paper and 768 in its code. {COMPARABLE} Source: Table 2",
    ("model", "parameters"),
    (Quantity("bits/character", "bits_per_token", 3, split="test"), PARAMETERS),
    (
        *_others(
            ("Ha et al. (2016), LN HyperNetworks", "27M", "1.34"),
            ("Chung et al. (2016), LN HM-LSTM", "35M", "1.32"),
            ("Zilly et al. (2016), recurrent highway networks", "46M", "1.27"),
            ("Mujika et al. (2017), large FS-LSTM-4", "47M", "1.25"),
            ("Krause et al. (2016), large mLSTM", "46M", "1.24"),
            ("Knol (2017), cmix v13", "–", "1.23"),
            ("Al-Rfou et al. (2018), 12-layer Transformer", "44M", "1.11"),
        ),
        _ours("12-layer Transformer-XL", "41M", "1.06", size="41M", memory=512, segment_length=512),
        *_others(("Al-Rfou et al. (2018), 64-layer Transformer", "235M", "1.06")),
        _ours("18-layer Transformer-XL", "88M", "1.03", layers=18),
        _ours("24-layer Transformer-XL", "277M", "0.99", layers=24),
    ),
    {"corpus": "enwik8"},
    settings=transformer_xl,
)

TABLE_3 = PaperTable(
    "txl_table_3",
    "Transformer-XL, Table 3: Penn Treebank",
    "Word-level perplexity; † fine-tunes in a second step. Neither the dimensions nor the dropouts "
    "of the Transformer-XL are published. Source: Table 3",
    ("model", "parameters"),
    (
        Quantity("validation", "perplexity", 2, split="validation"),
        Quantity("test", "perplexity", 2, split="test"),
        PARAMETERS,
    ),
    (
        *_others(
            ("Inan et al. (2016), tied variational LSTM + augmented loss", "24M", "75.7", "73.2"),
            ("Zilly et al. (2016), variational RHN", "23M", "67.9", "65.4"),
            ("Zoph & Le (2016), NAS cell", "25M", None, "64.0"),
            ("Merity et al. (2017), AWD-LSTM", "24M", "60.7", "58.8"),
            ("Pham et al. (2018), efficient NAS", "24M", "60.8", "58.6"),
            ("Liu et al. (2018), differentiable NAS", "23M", "58.3", "56.1"),
            ("Yang et al. (2017), AWD-LSTM-MoS", "22M", "58.08", "55.97"),
            ("Melis et al. (2018), 2-layer skip-LSTM + dropout tuning", "24M", "57.1", "55.3"),
        ),
        _ours("Transformer-XL", "24M", "56.72", "54.52"),
        *_others(
            ("Merity et al. (2017), AWD-LSTM + fine-tuning †", "24M", "60.0", "57.3"),
            ("Yang et al. (2017), AWD-LSTM-MoS + fine-tuning †", "22M", "56.54", "54.44"),
        ),
    ),
    {"corpus": "Penn Treebank"},
    settings=transformer_xl,
)

TABLE_4 = PaperTable(
    "txl_table_4",
    "Transformer-XL, Table 4: One Billion Word",
    "Word-level perplexity. Sentences are shuffled, so nothing is to be remembered for long. The "
    "released base script has 356M parameters with tied tables and 466M without. Source: Table 4",
    ("model", "parameters"),
    (Quantity("perplexity", "perplexity", 2), PARAMETERS),
    (
        *_others(
            ("Shazeer et al. (2014), sparse non-negative", "33B", "52.9"),
            ("Chelba et al. (2013), RNN-1024 + 9-gram", "20B", "51.3"),
            ("Jozefowicz et al. (2016), LSTM-2048-512", "0.83B", "43.7"),
            ("Kuchaiev & Ginsburg (2017), BIG G-LSTM-2", "–", "36.0"),
            ("Dauphin et al. (2016), GCNN-14 bottleneck", "–", "31.9"),
            ("Jozefowicz et al. (2016), LSTM-8192-1024", "1.8B", "30.6"),
            ("Jozefowicz et al. (2016), LSTM-8192-1024", "1.04B", "30.0"),
            ("Shazeer et al. (2017), low-budget MoE", "~5B", "34.1"),
            ("Shazeer et al. (2017), high-budget MoE", "~5B", "28.0"),
        ),
        _ours("Transformer-XL", "0.46B", "23.5", size="0.46B"),
    ),
    {"corpus": "One Billion Word"},
    settings=transformer_xl,
)


def _ablated(label, recurrent, encoding, loss, *printed, segment=128):
    where = {
        "system": "Tr-XL" if recurrent else "Baseline",
        "size": ABLATION,
        "encoding": encoding,
        "loss": "half" if loss == "partial" else loss,
        "segment_length": segment,
    }
    return Row((label, "yes" if recurrent else "no", encoding, loss), printed, where)


_RECURRENT = {"system": "Tr-XL", "encoding": "this paper", "loss": "full"}
INITIAL = Quantity("initial", "perplexity", 2, {"evaluated_as_trained": True})
BEST = Quantity("best", f"studies/attention_length/{BEST_PERPLEXITY}", 2)
LENGTH = Quantity("attention", f"studies/attention_length/{BEST_LENGTH}", 0)


def _standard_at(length, perplexity):
    """The standard model at one attention length: a point of the curve of the study."""
    labels = f"Transformer-XL (151M), attention {length}", "yes", "this paper", "full"
    at = {
        INITIAL.head: None,
        BEST.head: f"studies/attention_length/at/{length}",
        LENGTH.head: None,
    }
    return Row(labels, (None, perplexity, str(length)), _RECURRENT | STANDARD, at)


TABLE_5 = PaperTable(
    "txl_table_5",
    "Transformer-XL, Table 5: recurrence, encoding and loss",
    "Perplexity on WikiText-103 of 128M parameters, then of 151M: with attention in evaluation as "
    "long as in training (initial), and with the best length; `attention` is the shortest that "
    "reaches it, from `brt.evaluate --study=attention_length`; "
    "--gin.AttentionLength.step=150 tries 300 and 450 too. The split is not named; 23.09 is Table "
    "1's 23.1 of validation. Dimensions of 128M are not published. Source: Table 5",
    ("remark", "recurrence", "encoding", "loss"),
    (INITIAL, BEST, LENGTH),
    (
        _ablated("Transformer-XL (128M)", True, "this paper", "full", "27.02", "26.77", "500"),
        _ablated("–", True, "Shaw", "full", "27.94", "27.94", "256"),
        _ablated("–", True, "this paper", "half", "28.69", "28.33", "460"),
        _ablated("–", False, "this paper", "full", "29.59", "29.02", "260"),
        _ablated("–", False, "this paper", "half", "30.10", "30.10", "120"),
        _ablated("–", False, "Shaw", "full", "29.75", "29.75", "120"),
        _ablated("–", False, "Shaw", "half", "30.50", "30.50", "120"),
        _ablated("–", False, "Vaswani", "half", "30.97", "30.97", "120"),
        _ablated("Transformer (128M)", False, "Al-Rfou", "half", "31.16", "31.16", "120"),
        Row(
            ("Transformer-XL (151M)", "yes", "this paper", "full"),
            ("23.43", "23.09", "640"),
            _RECURRENT | STANDARD,
        ),
        _standard_at(450, "23.16"),
        _standard_at(300, "23.35"),
    ),
    settings=transformer_xl,
)

TABLE_6 = PaperTable(
    "txl_table_6",
    "Transformer-XL, Table 6: relative effective context length",
    "Tokens of context that still lower the perplexity of the hardest share r of the tokens by a "
    "hundredth, beside the best of a group: the first three models are one, the last four another, "
    "each of one size. Measured by `brt.evaluate --study=recl`. Source: Table 6",
    ("model",),
    tuple(Quantity(f"r = {r}", f"studies/recl/r{r}", 0) for r in ("0.1", "0.5", "1.0")),
    (
        Row(("Transformer-XL 151M",), ("900", "800", "700"), _RECURRENT | STANDARD),
        Row(("QRNN",), ("500", "400", "300"), {"system": "QRNN"}),
        Row(("LSTM",), ("400", "300", "200"), {"system": "LSTM"}),
        Row(("Transformer-XL 128M",), ("700", "600", "500"), _RECURRENT | {"size": ABLATION}),
        Row(
            ("- use Shaw et al. (2018) encoding",),
            ("400", "400", "300"),
            _RECURRENT | {"size": ABLATION, "encoding": "Shaw"},
        ),
        Row(
            ("- remove recurrence",),
            ("300", "300", "300"),
            {"system": "Baseline", "loss": "full", "size": ABLATION, "encoding": "this paper"},
        ),
        Row(
            ("Transformer",),
            ("128", "128", "128"),
            {"system": "Baseline", "loss": "half", "size": ABLATION, "encoding": "Al-Rfou"},
        ),
    ),
    rest=(),
    settings=transformer_xl,
)

TABLE_7 = PaperTable(
    "txl_table_7",
    "Transformer-XL, Table 7: time of evaluation",
    "How many times as long the vanilla model takes to evaluate a token, for which it reads a "
    "whole window, as a model with a memory of that length, on the same device. Measured by "
    "`brt.benchmark --evaluation_speed=CONFIG --json=FILE`, and read with --step_times=FILE. "
    "Source: Table 7",
    ("attention length",),
    (Quantity("times slower", "evaluation_speed", 0),),
    tuple(
        Row((f"{length:,}",), (printed,), {"system": f"vanilla {length}"})
        for length, printed in ((3800, "1,874"), (2800, "1,409"), (1800, "773"), (800, "363"))
    ),
)

TABLE_8 = PaperTable(
    "txl_table_8",
    "Transformer-XL, Table 8: the same memory on the accelerator",
    "As Table 5; without recurrence a longer segment fits the memory. `Partial` is Table 5's "
    "`half`. Source: Table 8",
    ("segment", "recurrence", "encoding", "loss"),
    (BEST, INITIAL, LENGTH),
    (
        _ablated("128", True, "this paper", "full", "26.77", "27.02", "500"),
        _ablated("128", True, "this paper", "partial", "28.33", "28.69", "460"),
        _ablated("176", False, "this paper", "full", "27.98", "28.43", "400", segment=176),
        _ablated("172", False, "this paper", "partial", "28.83", "28.83", "120", segment=172),
    ),
    settings=transformer_xl,
)

TABLES = (TABLE_1, TABLE_2, TABLE_3, TABLE_4, TABLE_5, TABLE_6, TABLE_7, TABLE_8)
TRANSFORMER_XL = Paper(
    "transformer_xl",
    TITLE,
    TABLES,
    (),
    about={"model": {"TransformerXL", "LSTM", "QRNN"}, "task": None},
    where={"task": None},
)
