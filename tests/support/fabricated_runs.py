"""Run folders with made-up numbers, as `brt.train` and `brt.evaluate` would leave them."""

import json

import numpy as np
from fabricated_recordings import fabricate
from gin_settings import bound
from paths import ROOT

from brt.reporting.collect import collect
from brt.reporting.gin_text import read_gin, read_gin_file, write_gin
from brt.reporting.papers.fill import paper_tables
from brt.reporting.runs import open_runs


def make_run(folder, name, *bindings, files=(), seed=0, evaluations=None, records=(), **entry):
    """A run folder of one of configs/, never trained.

    Args:
        name: of the gin file below configs/, or several joined by `+`; None for none.
        bindings, files: read after it.
        evaluations: split to bits per token, or to a dictionary of scalars.
        records: of metrics.jsonl.
        entry: content of stands_for.json, if any.
    """
    folder.mkdir(parents=True)
    settings = {}
    for file in (*(f"{part}.gin" for part in (name or "").split("+") if part), *files):
        settings |= read_gin_file(ROOT / "configs" / file)
    settings |= read_gin("\n".join([*bindings, f"Trainer.seed = {seed}"]))
    for file in ("config.gin", "operative_config.gin"):
        (folder / file).write_text(write_gin(settings))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    for split, found in (evaluations or {}).items():
        scalars = found if isinstance(found, dict) else {"bits_per_token": found}
        content = {"step": 10**9, "split": split, **scalars}
        (folder / f"evaluation_{split}.json").write_text(json.dumps(content))
    if entry:
        (folder / "stands_for.json").write_text(json.dumps(entry))
    return folder


def make_entry_run(folder, entry, **options):
    """A run of an entry of a sweep; options as of `make_run`."""
    return make_run(folder, None, write_gin(entry.settings), **entry.paper, **options)


def tables_of(paper, runs, step_times=None):
    """Returns the tables of a paper by name, filled with the runs in these folders."""
    return paper_tables(paper, collect(open_runs(runs)), step_times)


def filled_cells(table):
    """Cells of measured numbers, by the labels of their row and their heading."""
    heads, labels = table.heads(), sum(not column.group for column in table.columns)
    rows = {
        tuple(cell.text for cell in row[:labels]): {
            head: cell for head, cell in zip(heads, row) if cell.values
        }
        for row in table.rows
    }
    return {row: cells for row, cells in rows.items() if cells}


SMALL = (
    *bound("Trainer", corpus="@Corpus()", optimizer="@adamw", schedule="@cosine"),
    "Corpus.source = @TextFiles()",
    'TextFiles.path = "texts"',
    "TransformerXL.vocabulary_size = 256",
)
PUBLISHED = {
    "151M": (16, 410, 10, 41, 2100),
    "257M": (18, 1024, 16, 64, 4096),
    "41M": (12, 512, 8, 64, 2048),
    "277M": (24, 1024, 8, 128, 3072),
    "0.46B": (18, 1024, 8, 128, 4096),
    None: (2, 8, 2, 4, 12),
}
DIMENSIONS = "num_layers", "width", "num_heads", "head_size", "feed_forward_size"


def make_xl_run(
    folder, *bindings, size=None, memory=0, tokens=0, segment=128, steps=100, depth=None, **options
):
    """A run of Transformer-XL or the Recurrent Memory Transformer.

    Args:
        size: of `PUBLISHED`.
        memory, tokens: M and m. depth: of backpropagation, over as many segments read again.
        bindings, options: as of `make_run`.
    """
    model = "RecurrentMemoryTransformer" if tokens else "TransformerXL"
    lines = [f"Trainer.model = @{model}", f"TransformerXL.memory_length = {memory}"]
    lines += [f"TransformerXL.{n} = {v}" for n, v in zip(DIMENSIONS, PUBLISHED[size])]
    lines += [f"RecurrentMemoryTransformer.num_memory = {tokens}"] * bool(tokens)
    lines += [f"Trainer.segment_length = {segment}", f"Trainer.tokens_per_step = {segment}"]
    lines += [f"Trainer.steps = {steps}", 'Corpus.store = "stores/text"']
    if depth is not None:
        lines += [f"Trainer.reread_segments = {depth}"]
    return make_run(folder, None, *SMALL, *lines, *bindings, **options)


def make_task_run(folder, source, *bindings, segments=1, length=24, segment=24, **options):
    """A run of an algorithmic task: `CopyTask`, say; options as of `make_xl_run`."""
    argument = {"AssociativeRetrieval": "num_pairs", "QuadraticEquations": "max_root"}
    lines = [
        f"Corpus.source = @{source}()",
        f"{source}.{argument.get(source, 'length')} = {length}",
        'Trainer.stream = "samples"',
        f"Trainer.segments_per_step = {segments}",
        f"Trainer.tokens_per_step = {segments * segment}",
    ]
    return make_xl_run(folder, *lines, *bindings, segment=segment, **options)


def add_recording(run, store, state, nats_T, done=None):
    """A recording of every token of a store, as `brt.evaluate --record` leaves it."""
    folder = run / "recordings" / f"validation-{state}"
    by_document = np.split(np.asarray(nats_T), np.cumsum(store.lengths_D)[:-1])
    fabricate(folder, store, by_document, done, state=state, run=str(run))
    return folder
