"""The tables of the Block-Recurrent paper, measured beside published."""

from brt.reporting import published as paper
from brt.reporting.collect import Group
from brt.reporting.places import STANDARD, STANDARD_STATES
from brt.reporting.table import NOT_RUN, Cell, Column, Table, measured, published

PUBLISHED, MEASURED = "paper", "measured"
TABLE_1_CORPORA = {
    "PG19 bytes": "pg19_bytes",
    "PG19 tokens": "pg19_tokens",
    "arXiv": "arxiv",
    "GitHub": "github",
}
COMPARABLE = (
    "Numbers of other corpora, sizes or budgets than the paper's can be compared with one another "
    "only: bits per token depend on text, vocabulary, schedule, batch and size (appendix C.3)."
)


def paper_tables(groups: list[Group], step_times: dict[str, float] | None = None) -> list[Table]:
    """Tables 1, 2, 3a, 3b, 4 and 5, in this order.

    Args:
        groups: what was run.
        step_times: system to step time relative to the benchmark's baseline.
    """
    return [
        table_1(groups, step_times or {}),
        table_2(groups),
        table_3a(groups),
        table_3b(groups),
        table_4(groups),
        table_5(groups),
    ]


def table_1(groups, step_times) -> Table:
    """Fourteen systems; what was run besides stands below them."""
    own = _own_corpora(groups, TABLE_1_CORPORA)
    columns = [Column("", "model"), Column("", "segment"), Column("", "window")]
    columns += _pair("step time")
    columns += [Column(corpus, MEASURED) for corpus in own]
    for corpus in TABLE_1_CORPORA:
        columns += _pair(corpus)
    rows = []
    for row in paper.TABLE_1:
        found = [g for g in groups if g.place.is_standard and g.place.system == row.name]
        named = [Cell(row.name), Cell(str(row.segment_length)), Cell(str(row.window))]
        times = [published(row.step_time), _time(step_times, row.name)]
        printed = {corpus: getattr(row, field) for corpus, field in TABLE_1_CORPORA.items()}
        for variant in _variants(found):
            label = [Cell(f"{row.name}, {variant}"), *named[1:]] if variant else named
            mine = [g for g in found if g.variant == variant]
            rows.append(label + times + _table_1_cells(mine, printed, own))
    placed = {id(g) for g in groups if _is_placed(g)}
    for group in (g for g in groups if id(g) not in placed):
        where = group.place
        label = [
            Cell(_own_label(group)),
            Cell(str(where.segment_length)),
            Cell(str(where.window)),
        ]
        times = [published(None), _time(step_times, where.system)]
        rows.append(label + times + _table_1_cells([group], {}, own))
    return Table(
        "table_1",
        "Table 1: bits per token of every system",
        "Average bits per token, less is better (bytes: bits per byte), and the time of a training "
        "step relative to Slide:13L, measured relative to the baseline of `brt.benchmark`. Error "
        "bars are deviations over seeds, rounded up. Test split; GitHub validation. "
        f"{COMPARABLE} Source: {paper.PAPER}, Table 1.",
        columns,
        rows,
    )


def _table_1_cells(groups, printed, own):
    cells = [_cell(groups, corpus, decimals=3) for corpus in own]
    for corpus in TABLE_1_CORPORA:
        cells += [published(printed.get(corpus)), _cell(groups, corpus)]
    return cells


def table_2(groups) -> Table:
    """Word-level perplexity on PG19, with other published work."""
    rows = []
    for row in paper.TABLE_2:
        found = [
            g
            for g in groups
            if g.place.system == "Rec:fixed:skip"
            and g.place.size
            and g.place.size.name == row.parameters
            and g.place.corpus == "PG19 SPM"
        ]
        ours = row.model.startswith("Block-Recurrent")
        cell = _first(found, "word_level_perplexity", 2) if ours else Cell("–")
        rows.append(
            [
                Cell(row.model),
                Cell(str(row.layers)),
                published(row.parameters),
                Cell(row.vocabulary),
                published(row.word_perplexity),
                cell,
            ]
        )
    columns = [Column("", t) for t in ("model", "layers", "parameters", "vocabulary")]
    return Table(
        "table_2",
        "Table 2: word-level perplexity on PG19",
        "Word-level perplexity on PG19's test split, less is better: exp of the summed loss over "
        f"{paper.PG19_TEST_WORDS:,} words. The other systems differ in vocabulary, parameters and "
        f"training, so their order says little of their architectures. Source: {paper.PAPER}, "
        "Table 2.",
        columns + _pair("word-level perplexity"),
        rows,
    )


def table_3a(groups) -> Table:
    """Window length."""
    systems = "Rec:fixed:skip", "Slide:12L"
    found = [
        g
        for g in groups
        if g.place.size == STANDARD
        and g.place.system in systems
        and g.place.states in (None, STANDARD_STATES)
    ]
    corpora = _corpora(found)
    columns = [Column("", "window")]
    for system in systems:
        columns += [Column(system, PUBLISHED), *(Column(system, c) for c in corpora)]
    rows = []
    for window, printed in paper.TABLE_3A.items():
        cells = [Cell(str(window))]
        for system in systems:
            mine = [g for g in found if (g.place.window, g.place.system) == (window, system)]
            cells += [published(printed[system]), *(_cell(mine, c) for c in corpora)]
        rows.append(cells)
    return Table(
        "table_3a",
        "Table 3a: window length",
        "Bits per token when the window shrinks. The recurrent model should lose less than the "
        f"sliding window. Published: PG19 tokens. {COMPARABLE} Source: {paper.PAPER}, Table 3 (a).",
        columns,
        rows,
    )


def table_3b(groups) -> Table:
    """Number of states."""
    found = [
        g
        for g in groups
        if g.place.size == STANDARD
        and g.place.system == "Rec:fixed:skip"
        and g.place.window == STANDARD_STATES
    ]
    corpora = _corpora(found)
    group = "Rec:fixed:skip"
    columns = [Column("", "states"), Column(group, PUBLISHED), *(Column(group, c) for c in corpora)]
    rows = [
        [
            Cell(str(states)),
            published(printed),
            *(_cell([g for g in found if g.place.states == states], c) for c in corpora),
        ]
        for states, printed in paper.TABLE_3B.items()
    ]
    return Table(
        "table_3b",
        "Table 3b: number of states",
        "Bits per token by the number of state vectors, window 512. Published: PG19 tokens; best "
        f"at 1,024, worse at 2,048. {COMPARABLE} Source: {paper.PAPER}, Table 3 (b).",
        columns,
        rows,
    )


def table_4(groups) -> Table:
    """Size of the model."""
    corpora = _corpora([g for g in groups if _table_4_row(g)])
    columns = [Column("", "model"), Column("", "numbers")]
    columns += [Column("parameters", size.name) for size in paper.TABLE_4]
    rows = []
    for name, field in zip(paper.TABLE_4_ROWS, ("recurrent", "baseline")):
        printed = [published(getattr(size, field)) for size in paper.TABLE_4]
        rows.append([Cell(name), Cell(PUBLISHED), *printed])
        for corpus in corpora:
            cells = [_cell(scaling_groups(groups, name, size), corpus) for size in paper.TABLE_4]
            rows.append([Cell(name), Cell(corpus), *cells])
    return Table(
        "table_4",
        "Table 4: size of the model",
        "Bits per token at six sizes, plotted in Figure 3. Recurrence should be worth about twice "
        "the parameters at the larger sizes. Columns are named by the published parameter counts. "
        f"Published: PG19, 32k SentencePiece. {COMPARABLE} Source: {paper.PAPER}, Table 4.",
        columns,
        rows,
    )


def scaling_groups(groups, row: str, size) -> list[Group]:
    """The groups that belong in one cell of Table 4."""
    return [g for g in groups if _table_4_row(g) == row and g.place.size == size]


def _table_4_row(group):
    """Its row of Table 4; None if it has none."""
    where = group.place
    if where.size is None or where.window != 512:
        return None
    if where.system.startswith("XL:512:") and where.segment_length == 512:
        return paper.TABLE_4_ROWS[1]
    fits = where.system == "Rec:fixed:skip" and where.states == STANDARD_STATES
    return paper.TABLE_4_ROWS[0] if fits else None


def table_5(groups) -> Table:
    """Vocabularies."""
    found = [
        g
        for g in groups
        if g.place.system == "Rec:fixed:skip" and g.place.corpus.startswith("PG19")
    ]
    shown = (
        ("tokens", "tokens", 0),
        ("scale factor", "tokens_per_word", 4),
        ("bits/token", "bits_per_token", 3),
        ("word-level perplexity", "word_level_perplexity", 2),
    )
    columns = [Column("", "vocabulary"), Column("", "size")]
    for title, _, _ in shown:
        columns += _pair(title)
    rows = []
    for row in paper.TABLE_5:
        key = row.vocabulary, row.size
        mine = [g for g in found if g.place.vocabulary == key and g.place.size == STANDARD]
        printed = (
            f"{row.tokens:,}",
            row.scale_factor,
            row.bits_per_token,
            row.word_perplexity,
        )
        substitute = " (not public)" if row.vocabulary == "LaMDA" else ""
        cells = [Cell(row.vocabulary + substitute), Cell(row.size)]
        for text, (_, name, decimals) in zip(printed, shown):
            cells += [published(text), _first(mine, name, decimals)]
        rows.append(cells)
    return Table(
        "table_5",
        "Table 5: vocabularies",
        "Rec:fixed:skip on PG19's test split. The scale factor is tokens a word; word-level "
        "perplexity is 2 to the bits per token times it. Larger vocabularies need fewer tokens of "
        f"more bits each (Figure 7). Source: {paper.PAPER}, Table 5, where SPM 32k stands twice.",
        columns,
        rows,
    )


def _pair(group):
    return [Column(group, PUBLISHED), Column(group, MEASURED)]


def _cell(groups, corpus, decimals=None):
    return _first([g for g in groups if g.place.corpus == corpus], "bits_per_token", decimals)


def _first(groups, name, decimals):
    """The cell of the first group; a second one has other bindings and a row of its own."""
    return groups[0].cell(name, decimals) if groups else Cell(NOT_RUN)


def _time(step_times, system):
    ratio = step_times.get(system)
    return Cell(NOT_RUN) if ratio is None else measured([ratio], 2)


def _variants(groups):
    """The variants of a row, the plain one first; one empty one if nothing was run."""
    return list(dict.fromkeys(group.variant for group in groups)) or [""]


def _corpora(groups):
    return list(dict.fromkeys(g.place.corpus for g in groups)) or ["measured"]


def _own_corpora(groups, known):
    return [c for c in dict.fromkeys(g.place.corpus for g in groups) if c not in known]


def _is_placed(group):
    """Whether some table has a row for it, so that Table 1 needs none of its own."""
    where = group.place
    ablation = where.size == STANDARD and where.system in ("Rec:fixed:skip", "Slide:12L")
    return where.is_standard or ablation or _table_4_row(group) is not None


def _own_label(group):
    settings = group.runs[0].settings
    layers, width = (settings.get(f"LanguageModel.{n}") for n in ("num_layers", "width"))
    label = f"{group.place.system} ({layers} layers, d {width})"
    return f"{label}, {group.variant}" if group.variant else label
