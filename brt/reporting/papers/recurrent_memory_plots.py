"""The Recurrent Memory Transformer paper's figures that are plots of runs, as data.

Figure 5 is drawn from the printed numbers of Table 5. Figures 3, 4 and 8 print no numbers: theirs
are means of the runs in the released logs, which the plots call so. Nothing is read off an image.
"""

from brt.reporting.papers.form import Curve, Paper, PaperPlot
from brt.reporting.papers.recurrent_memory import TABLE_5, TABLES, TITLE, visible_context

LOGS = "the authors' logs"
SPREAD = "Bands are deviations over seeds. Published: means of the authors' released runs."


def _task(name, title, text, x, x_label, where, logged, source):
    """A figure of accuracies.

    Args:
        where: rule of its runs but for the system.
        logged: system to the logged (x, accuracy) pairs.
    """
    curves = []
    for system, points in logged.items():
        if system == "Baseline":
            own = {name: value for name, value in where.items() if name != "memory_share"}
        else:
            own = where
        xs, ys = zip(*points)
        curves.append(Curve(system, xs, ys, own | {"system": system}, "task_accuracy"))
    return PaperPlot(
        name,
        f"RMT, {title}",
        f"{text} {SPREAD} Source: {source}",
        x,
        x_label,
        "accuracy",
        tuple(curves),
        log_x=False,
        source=LOGS,
        y_range=(0, 1.05),
        rest={name: value for name, value in where.items() if not name.startswith("memory")},
    )


def _pairs(x, *y):
    return tuple((at, found) for at, found in zip(x, y) if found)


COPY = {"task": "copy", "task_length": 24, "symbols": 10}
REVERSE = COPY | {"task": "reverse"}
LONG = {"task_length": 120, "symbols": 8}
WHOLE, HALF = {"memory_share": 1.0}, {"memory_share": 0.5}
SEGMENTS = "segments", "segments"

FIGURE_3 = (
    _task(
        "rmt_figure_3a",
        "Figure 3: copy, 24 symbols",
        "Share of characters right on test samples, by the number of segments; the memory is as "
        "long as a segment. Without recurrence the source is out of sight in all but one segment: "
        "guessing gives 0.1.",
        *SEGMENTS,
        COPY | WHOLE,
        {
            "Baseline": _pairs((1, 3, 6, 9), "1.00", "0.118", "0.102", "0.102"),
            "Tr-XL": _pairs((3, 6, 9), "1.000", "0.967", "0.288"),
            "RMT": _pairs((3, 6, 9), "1.00", "1.00", "1.00"),
        },
        "Figure 3, left,",
    ),
    _task(
        "rmt_figure_3b",
        "Figure 3: reverse, 24 symbols",
        "As for copy; the source must be written backwards.",
        *SEGMENTS,
        REVERSE | WHOLE,
        {
            "Tr-XL": _pairs((2, 4, 6), "0.783", "0.861", "0.666"),
            "RMT": _pairs((2, 4, 6), "1.00", "1.00", "0.901"),
        },
        "Figure 3, middle,",
    ),
    _task(
        "rmt_figure_3c",
        "Figure 3: associative retrieval",
        "One of four values is asked for by its key. The published cuts into 3 and 4 segments are "
        "of unequal length; in runs here they are padded to equal ones.",
        *SEGMENTS,
        {"task": "retrieval", "memory_share": 1.0},
        {
            "Baseline": _pairs((1, 2, 3, 4, 5), "1.00", "0.496", "0.496", "0.099", "0.099"),
            "Tr-XL": _pairs((2, 3, 4, 5), "1.00", "1.00", "0.849", "0.988"),
            "RMT": _pairs((2, 3, 4, 5), "0.998", "0.999", "0.992", "0.965"),
        },
        "Figure 3, right,",
    ),
)

FIGURE_4 = (
    _task(
        "rmt_figure_4a",
        "Figure 4a: copy, 120 symbols",
        "360 tokens cut into more and more segments: 120, 60 and 40 long, with memories of 60, 30 "
        "and 40. Guessing gives 0.125.",
        *SEGMENTS,
        LONG | {"task": "copy"},
        {
            "Tr-XL": _pairs((3, 6, 9), "0.779", "0.125", "0.136"),
            "RMT": _pairs((3, 6, 9), "1.00", "1.00", "1.00"),
        },
        "Figure 4 (a)",
    ),
    _task(
        "rmt_figure_4b",
        "Figure 4b: copy of longer and longer sequences",
        "Segments of 120 tokens and a memory of 60 whatever the length of the source. The best "
        "logged RMT has 1.00 at 240. Guessing gives 0.125.",
        "task_length",
        "symbols to copy",
        {"task": "copy", "symbols": 8, "segment_length": 120, "memory_size": 60},
        {
            "Tr-XL": _pairs((120, 240, 360), "0.779", "0.125", "0.125"),
            "RMT": _pairs((120, 240, 360), "1.00", "0.883", "0.579"),
        },
        "Figure 4 (b)",
    ),
)

FIGURE_8 = (
    _task(
        "rmt_figure_8a",
        "Figure 8a: copy, 24 symbols, half the memory",
        "The memory is half as long as a segment, so that a segment must be compressed to be "
        "remembered.",
        *SEGMENTS,
        COPY | HALF,
        {
            "Tr-XL": _pairs((3, 6), "0.832", "0.542"),
            "RMT": _pairs((3, 6), "1.00", "1.00"),
        },
        "Figure 8 (a)",
    ),
    _task(
        "rmt_figure_8b",
        "Figure 8b: reverse, 24 symbols, half the memory",
        "The memory is half as long as a segment.",
        *SEGMENTS,
        REVERSE | HALF,
        {
            "Tr-XL": _pairs((2, 4), "0.996", "0.800"),
            "RMT": _pairs((2, 4), "1.00", "1.00"),
        },
        "Figure 8 (b)",
    ),
    _task(
        "rmt_figure_8c",
        "Figure 8c: reverse, 120 symbols",
        "The memory is 60; cuts of 120, 60 and 40 tokens, Tr-XL with a cache of 40 or 60 at the "
        "last. Where the logs have runs of two kinds, both ends are marked.",
        *SEGMENTS,
        LONG | {"task": "reverse"},
        {
            "Tr-XL": _pairs((2, 2, 4, 6, 6), "0.81", "0.89", "0.614", "0.46", "0.67"),
            "RMT": _pairs((2, 2, 4, 6), "0.94", "0.97", "0.997", "1.00"),
        },
        "Figure 8 (c)",
    ),
)

_AT_50 = [row for row in TABLE_5.rows if row.where and row.where["segment_length"] == 50]
"""The rows that Figure 5 can be drawn from: those with more segments."""


def _curve(name, rows, x, **where):
    points = sorted((x(row.where), row.printed[0], _size(row.where)) for row in rows)
    xs, ys, sizes = zip(*points)
    own = TABLE_5.where | {"segment_length": 50} | where
    return Curve(name, xs, ys, own, "perplexity", sizes=sizes)


def _size(where):
    return where["memory_tokens"] or where["memory"]


def _visible(where):
    names = ("system", "segment_length", "memory", "bptt_depth")
    return visible_context(*(where[name] for name in names))


def _rows(system, **where):
    rule = {"system": system} | where
    return [row for row in _AT_50 if all(row.where[name] == value for name, value in rule.items())]


FIGURE_5A = PaperPlot(
    "rmt_figure_5a",
    "RMT, Figure 5a: perplexity by visible context",
    "What training sees: (k+1) segments of an RMT whose gradients cross k memories, M + 50 tokens "
    "of a Transformer-XL. The larger a mark the larger the memory. Drawn from the rows of Table 5 "
    "whose segments are 50 tokens long. Source: Figure 5 (a) and Table 5",
    "visible_context",
    "visible context, tokens",
    "perplexity",
    (
        _curve("Tr-XL", _rows("Tr-XL"), _visible, system="Tr-XL"),
        *(
            _curve(f"RMT, m = {m}", _rows("RMT", memory_tokens=m), _visible,
                   system="RMT", memory_tokens=m)
            for m in (1, 5, 10, 25, 50)
        ),
    ),
    log_x=False,
    size="memory_size",
)  # fmt: skip

FIGURE_5B = PaperPlot(
    "rmt_figure_5b",
    "RMT, Figure 5b: perplexity by memory size",
    "For the same size recurrence is better, and one vector is worth most: m vectors of an RMT "
    "beside M in every layer of a Transformer-XL. Curves of one BPTT depth. Drawn from the rows of "
    "Table 5 whose segments are 50 tokens long. Source: Figure 5 (b) and Table 5",
    "memory_size",
    "memory size",
    "perplexity",
    (
        _curve("Tr-XL", _rows("Tr-XL"), _size, system="Tr-XL"),
        *(
            _curve(f"RMT BPTT-{k}", _rows("RMT", bptt_depth=k), _size, system="RMT", bptt_depth=k)
            for k in range(5)
        ),
    ),
)

PLOTS = (*FIGURE_3, *FIGURE_4, FIGURE_5A, FIGURE_5B, *FIGURE_8)
RECURRENT_MEMORY = Paper(
    "recurrent_memory",
    TITLE,
    TABLES,
    PLOTS,
    about={"model": {"TransformerXL", "RecurrentMemoryTransformer", "PretrainedReader"}},
)
