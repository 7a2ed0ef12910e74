"""Tables of the Recurrent Memory Transformer paper, as data.

Source: Bulatov, Kuratov and Burtsev 2022, Recurrent Memory Transformer, arXiv:2207.06881. Its
figures are in recurrent_memory_plots.py.
"""

from brt.reporting.papers.form import PaperTable, Quantity, Row
from brt.reporting.papers.recipes_transformer_xl import hyperpartisan, quadratic, recurrent_memory

TITLE = "Recurrent Memory Transformer, arXiv:2207.06881"
STEPS = 200_000
"""Of every model of WikiText-103 but those "2x steps" (appendix A.5)."""
TASKS = {"copy", "reverse", "retrieval", "quadratic"}
GIB = 2.0**30

CARRIED = (
    "`vectors` are what a row carries from one segment to the next: m of an RMT, M in each of the "
    "layers of a Transformer-XL (section 5). `visible` is the context that training sees: (k+1) L "
    "of an RMT whose gradients cross k segments, M + L of a Transformer-XL (Figure 5a); none is "
    "published for the two together."
)


def vectors(layers: int, memory: int, memory_tokens: int) -> int:
    """Returns the vectors that a row carries between segments; `memory_tokens` of an RMT only.

    Source: section 5: a Transformer-XL caches M vectors in each of n layers, an RMT m in all.
    """
    return layers * memory + memory_tokens


def visible_context(system: str, segment_length: int, memory: int, bptt_depth: int) -> int | None:
    """Returns the tokens that a prediction may depend on in training, None where none is printed.

    Source: section 5 and Figure 5a.
    """
    return {
        "Baseline": segment_length,
        "MemTr": segment_length,
        "Tr-XL": memory + segment_length,
        "RMT": (bptt_depth + 1) * segment_length,
    }.get(system)


def _language_row(layers, label, segment, printed, memory=0, tokens=0, depth=0, steps=None):
    """A row of Tables 2, 4 and 5. MemTr's tokens stand at the start, so they carry nothing."""
    system = label.partition(" BPTT")[0].partition(" 2x")[0].removesuffix(" (ours)")
    system = "MemTr" if system == "MT" else system
    shown = "+".join(str(n) for n in (memory, tokens) if n) or "0"
    carried = vectors(layers, memory, 0 if system == "MemTr" else tokens)
    visible = visible_context(system, segment, memory, depth)
    labels = label, shown, str(segment), f"{carried:,}", "–" if visible is None else str(visible)
    where = {
        "system": system,
        "segment_length": segment,
        "memory": memory,
        "evaluation_memory": memory,
        "memory_tokens": tokens,
        "bptt_depth": depth,
    }
    return Row(labels, (printed,), where | ({"steps": steps} if steps else {}))


def _wikitext(label, segment, printed, memory=0, tokens=0, depth=0):
    steps = STEPS * (2 if "2x" in label else 1)
    return _language_row(16, label, segment, printed, memory, tokens, depth, steps)


def _rmt(segment, tokens, *printed):
    """Rows of one memory size, from BPTT-0."""
    return tuple(
        _wikitext(f"RMT BPTT-{depth}", segment, perplexity, tokens=tokens, depth=depth)
        for depth, perplexity in enumerate(printed)
    )


def _published(label, memory, segment, printed):
    """A row that another paper reports, so that nothing here fills it."""
    return Row((label, str(memory), str(segment), "–", str(memory + segment)), (printed,), None)


LABELS = ("model", "memory", "segment", "vectors", "visible")
PERPLEXITY = (
    Quantity("perplexity", "perplexity", 2),
    Quantity("peak memory, GiB", "perf/peak_bytes", 2, is_printed=False, divisor=GIB),
)

TABLE_5 = PaperTable(
    "rmt_table_5",
    "RMT, Table 5: all models on WikiText-103",
    f"Test perplexity, mean and deviation over seeds, rounded up. {CARRIED} The line `2x steps` "
    "of Tr-XL + RMT is damaged in the text at hand, which has room for a second row there; one "
    "number is printed. Not typical, and single runs: memory 25 with BPTT-0 at 150, and with "
    "BPTT-2 at 50. Source: Table 5",
    LABELS,
    PERPLEXITY,
    (
        _wikitext("Baseline", 150, "29.95 ± 0.15"),
        _wikitext("MT", 150, "29.63 ± 0.06", tokens=10),
        _wikitext("MT", 150, "29.67 ± 0.03", tokens=25),
        _wikitext("MT", 150, "29.69 ± 0.02", tokens=75),
        _wikitext("MT", 150, "29.82 ± 0.35", tokens=150),
        _published("Tr-XL (paper)", 150, 150, "24.0"),
        _wikitext("Tr-XL (ours)", 150, "24.12 ± 0.05", 150),
        _wikitext("Tr-XL (ours) 2x steps", 150, "24.67", 150),
        _wikitext("Tr-XL", 150, "24.68 ± 0.01", 75),
        _wikitext("Tr-XL 2x steps", 150, "24.49", 75),
        _wikitext("Tr-XL", 150, "25.57 ± 0.02", 25),
        *_rmt(150, 10, "26.85 ± 0.02", "25.92 ± 1.07", "25.32 ± 0.61", "25.04 ± 0.07"),
        *_rmt(150, 25, "29.73", "24.91", "24.85 ± 0.31"),
        _wikitext("Tr-XL + RMT BPTT-3", 150, "24.53", 70, 5, 3),
        _wikitext("Tr-XL + RMT BPTT-3", 150, "24.47 ± 0.05", 75, 5, 3),
        _wikitext("Tr-XL + RMT BPTT-0", 150, "24.25", 140, 10, 0),
        _wikitext("Tr-XL + RMT BPTT-1", 150, "24.30 ± 0.09", 150, 10, 1),
        _wikitext("Tr-XL + RMT BPTT-3 2x steps", 150, "23.99 ± 0.09", 150, 10, 3),
        _wikitext("Baseline", 50, "39.05 ± 0.01"),
        _wikitext("Tr-XL", 50, "25.14", 200),
        _wikitext("Tr-XL", 50, "25.66 ± 0.01", 100),
        _wikitext("Tr-XL", 50, "26.54 ± 0.01", 50),
        _wikitext("Tr-XL", 50, "27.57 ± 0.09", 25),
        _wikitext("Tr-XL", 50, "28.98 ± 0.11", 10),
        _wikitext("Tr-XL", 50, "30.06 ± 0.07", 5),
        _wikitext("Tr-XL", 50, "32.35 ± 0.03", 1),
        *_rmt(50, 1, "31.33 ± 1.26", "28.71 ± 0.03", "28.44", "28.40 ± 0.03"),
        *_rmt(50, 5, "30.32 ± 0.18", "27.05 ± 0.20", "26.83 ± 0.18", "26.75 ± 0.26",
              "26.67 ± 0.03"),
        *_rmt(50, 10, "30.69 ± 0.01", "27.95 ± 1.32", "26.62 ± 0.34", "26.37 ± 0.01",
              "26.25 ± 0.19"),
        *_rmt(50, 25, "29.75", "26.32", "27.31"),
        *_rmt(50, 50, "29.75", "26.03"),
    ),
    {"size": "151M", "task": None},
    settings=recurrent_memory,
)  # fmt: skip

_OF_TABLE_2 = (
    ("Tr-XL (paper)", "150", "150"),
    ("Baseline", "0", "150"),
    ("MT", "10", "150"),
    ("Tr-XL (ours)", "150", "150"),
    ("Tr-XL", "25", "150"),
    ("Tr-XL", "75", "150"),
    ("RMT BPTT-3", "10", "150"),
    ("RMT BPTT-2", "25", "150"),
    ("Tr-XL + RMT BPTT-3", "75+5", "150"),
    ("Tr-XL + RMT BPTT-3 2x steps", "150+10", "150"),
    ("Baseline", "0", "50"),
    ("Tr-XL", "100", "50"),
    ("Tr-XL", "50", "50"),
    ("Tr-XL", "25", "50"),
    ("Tr-XL", "10", "50"),
    ("RMT BPTT-1", "1", "50"),
    ("RMT BPTT-3", "10", "50"),
)
_BY_LABELS = {row.labels[:3]: row for row in TABLE_5.rows}

TABLE_2 = PaperTable(
    "rmt_table_2",
    "RMT, Table 2: the best models on WikiText-103",
    f"Test perplexity: rows of Table 5. {CARRIED} Of 150+10 Table 2 does not say, as Table 5 does, "
    "that it trained twice as long. Source: Table 2",
    LABELS,
    PERPLEXITY,
    tuple(_BY_LABELS[labels] for labels in _OF_TABLE_2),
    TABLE_5.where,
    settings=recurrent_memory,
)


def _enwik8(label, segment, printed, memory=0, tokens=0, depth=0):
    return _language_row(12, label, segment, printed, memory, tokens, depth)


TABLE_4 = PaperTable(
    "rmt_table_4",
    "RMT, Table 4: enwik8",
    f"Test bits per character, mean and deviation over seeds, rounded up. {CARRIED} The paper does "
    "not print the baseline; its released logs have 1.402 at segment 128 and 1.391 at 512. "
    "Source: Table 4",
    LABELS,
    (Quantity("bits/character", "bits_per_token", 3), PERPLEXITY[1]),
    (
        _published("Tr-XL (paper)", 512, 512, "1.06"),
        _enwik8("Tr-XL (ours)", 512, "1.071", 512),
        _enwik8("Tr-XL", 128, "1.140", 200),
        _enwik8("Tr-XL", 128, "1.178", 100),
        _enwik8("Tr-XL", 128, "1.196", 75),
        _enwik8("Tr-XL", 128, "1.230 ± 0.001", 40),
        _enwik8("Tr-XL", 128, "1.261", 20),
        _enwik8("Tr-XL", 128, "1.283 ± 0.001", 10),
        _enwik8("RMT BPTT-1", 128, "1.241 ± 0.002", 0, 5, 1),
        _enwik8("RMT BPTT-2", 128, "1.231 ± 0.002", 0, 5, 2),
        _enwik8("RMT BPTT-1", 128, "1.240 ± 0.006", 0, 10, 1),
        _enwik8("RMT BPTT-2", 128, "1.228 ± 0.003", 0, 10, 2),
        _enwik8("RMT BPTT-0", 128, "1.301", 0, 20, 0),
        _enwik8("RMT BPTT-1", 128, "1.229", 0, 20, 1),
        _enwik8("RMT BPTT-2", 128, "1.222", 0, 20, 2),
    ),
    {"size": "41M", "task": None},
    settings=recurrent_memory,
)

TABLE_1 = PaperTable(
    "rmt_table_1",
    "RMT, Table 1: quadratic equations",
    "Share of test samples whose whole answer is right when the model reads its own predictions, "
    "mean and deviation over seeds. The released logs have means of 0.996, 0.934 and 0.992; the "
    "printed deviations of the first and the last look exchanged. Source: Table 1",
    ("model", "memory", "segments"),
    (Quantity("accuracy", "answer_accuracy", 3, {"task": "quadratic"}),),
    (
        Row(("Baseline", "0", "1"), ("0.99 ± 0.01",), {"system": "Baseline", "segments": 1}),
        Row(
            ("Tr-XL", "30", "6"),
            ("0.93 ± 0.02",),
            {"system": "Tr-XL", "memory": 30, "segments": 6},
        ),
        Row(
            ("RMT", "30", "6"),
            ("0.99 ± 0.002",),
            {"system": "RMT", "memory_tokens": 30, "segments": 6},
        ),
    ),
    {"task": "quadratic", "corpus": "quadratic", "task_length": 100},
    rest=("memory_shown", "segments"),
    settings=quadratic,
)


def _hyperpartisan(label, *printed):
    system = None
    if label.startswith("RMT "):
        system = {"system": label.partition("-")[0], "memory_tokens": 10}
    return Row((label,), (*printed, *[None] * (4 - len(printed))), system)


TABLE_3 = PaperTable(
    "rmt_table_3",
    "RMT, Table 3: Hyperpartisan news",
    "F1 of pretrained models with 10 memory tokens, by the number of segments of 499 tokens that "
    "they read: segments of 512 positions, T5's 501 of text. How they were fine-tuned is not "
    "published: runs are compared with the authors' scripts, and by the split list of Longformer's "
    "authors. Source: Table 3",
    ("model [input size]",),
    tuple(
        Quantity(
            f"{n} segment{'s' * (n > 1)}",
            "f1",
            2,
            {"segments": n, "corpus": "Hyperpartisan"},
            divisor=0.01,
        )
        for n in (1, 2, 3, 4)
    ),
    (
        _hyperpartisan("Big Bird [4096]", "92.20"),
        _hyperpartisan("Longformer [4096]", "94.80"),
        _hyperpartisan("Graph-RoBERTa [512x100]", "96.15"),
        _hyperpartisan("ERNIE-Doc-large [640]", "96.60"),
        _hyperpartisan("ERNIE-Sparse [4096]", "92.81"),
        _hyperpartisan("RMT BERT-base-cased [512]", "91.60", "94.12", "93.06", "94.34"),
        _hyperpartisan("RMT RoBERTa-base [512]", "94.87", "97.20", "96.72", "98.11"),
        _hyperpartisan("RMT DeBERTa-v3-base [512]", "94.17", "96.78", "94.80", "94.80"),
        _hyperpartisan("RMT T5-base [512]", "94.99", "95.32", "96.12", "97.20"),
    ),
    settings=hyperpartisan,
)


def _unsteady(row):
    labels = (*row.labels[1:3], str(row.where["bptt_depth"]))
    return Row(labels, (row.printed[0], row.printed[0].partition(" ± ")[2] or None), row.where)


INSTABILITY = PaperTable(
    "rmt_instability",
    "RMT: spread and memory by memory size and BPTT depth",
    "The paper trains unsteadily, and runs out of memory, where both memory and depth are large; "
    "its only numbers are Table 5's deviations, which single runs do not have. `worst` is the "
    "seed with the highest perplexity. Source: section 5 and Table 5",
    ("memory", "segment", "depth"),
    (
        Quantity("perplexity", "perplexity", 2),
        Quantity("deviation", "perplexity", 2, of="spread"),
        Quantity("worst", "perplexity", 2, is_printed=False, of="worst"),
        Quantity("seeds", "perplexity", 0, is_printed=False, of="count"),
        PERPLEXITY[1],
    ),
    tuple(_unsteady(row) for row in TABLE_5.rows if row.where and row.where["system"] == "RMT"),
    TABLE_5.where,
    settings=recurrent_memory,
)

TASK_RUNS = PaperTable(
    "rmt_tasks",
    "Algorithmic tasks: what was run",
    "Every run of a task, any model, test samples. `accuracy` is what Figures 3, 4 and 8 show: the "
    "share of scored characters that are right when the model reads its own predictions, or, where "
    "less than a segment is scored, the right ones. `teacher-forced` always reads those; "
    "`all right` is the share of samples without a mistake. n: symbols, pairs, or largest root. "
    "`vectors` are carried from segment to segment, besides a window. "
    "Source: section 4 and appendix A.1",
    ("model", "task", "n", "symbols", "segments", "memory", "vectors"),
    (
        *(
            Quantity(head, scalar, 3, {"corpus": TASKS}, is_printed=False)
            for head, scalar in (
                ("accuracy", "task_accuracy"),
                ("teacher-forced", "accuracy"),
                ("all right", "free_running_exact"),
            )
        ),
    ),
    (),
    rest=("task", "task_length", "symbols_shown", "segments", "memory_shown", "vectors_shown"),
)

TABLES = (TABLE_1, TABLE_2, TABLE_3, TABLE_4, TABLE_5, INSTABILITY, TASK_RUNS)
