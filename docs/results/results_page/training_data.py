"""What the archived runs were trained on: data checksums, and how far gradients reach."""

from collections import Counter
from collections.abc import Mapping, Sequence

from results_page.files_entries import CONFIRMATION, TIME, WINDOWS
from results_page.gains import gradient_tokens

from brt.reporting.collect import Group
from brt.reporting.drawing.table import Table, plain_table


def gradients_table(ladders: Mapping[str, Sequence[Group]]) -> Table:
    """Returns one row a number of tokens, with the ladders whose runs have it."""
    found: dict[int, Counter[str]] = {}
    for name, groups in ladders.items():
        for run in (run for group in groups for run in group.runs):
            found.setdefault(gradient_tokens(run.settings), Counter())[name] += 1
    rows = [
        [f"{tokens:,}", f"{runs.total():,}", ", ".join(f"`{name}`" for name in sorted(runs))]
        for tokens, runs in sorted(found.items())
    ]
    caption = "Tokens of a document that the gradients of one step cross, by the archived settings."
    titles = ("tokens", "runs", "ladders of `runs/`")
    return plain_table("gradients", "Gradients", caption, titles, rows)


def checksums_table(ladders: Mapping[str, Sequence[Group]]) -> Table | None:
    """Returns the data checksum of the runs on files after their last step, by steps and seed."""
    found: dict[tuple[int, int], set[str]] = {}
    for ladder in (WINDOWS, CONFIRMATION, TIME):
        for run in (run for group in ladders.get(ladder, ()) for run in group.runs):
            key = run.settings["Trainer.steps"], run.settings.get("Trainer.seed", 0)
            last = [record["data/ledger"] for record in run.records if "data/ledger" in record][-1:]
            found.setdefault(key, set()).update(last)
    rows = [[f"{steps:,}", f"{seed}", " ".join(f"`{each}`" for each in sorted(checksums))]
            for (steps, seed), checksums in sorted(found.items())]  # fmt: skip
    caption = "`data/ledger` of the last record in `metrics.jsonl`, the same in all runs of a row."
    titles = ("steps", "seed", "data checksum")
    return plain_table("files_checksums", "Checksums", caption, titles, rows) if rows else None
