"""Run folders with made-up numbers, as `brt.train` and `brt.evaluate` would leave them."""

import json
from pathlib import Path

from brt.reporting.gin_text import read_gin, read_gin_file, write_gin

ROOT = Path(__file__).resolve().parent.parent


def make_run(folder, name, *bindings, files=(), seed=0, evaluations=None, records=(), **rung):
    """A run folder of one of configs/, never trained.

    Args:
        name: of the gin file.
        bindings, files: read after it.
        evaluations: split to bits per token, or to a dictionary of scalars.
        records: of metrics.jsonl.
        rung: content of rung.json, if any.
    """
    folder.mkdir(parents=True)
    settings = {}
    for file in (f"{name}.gin", *files):
        settings |= read_gin_file(ROOT / "configs" / file)
    settings |= read_gin("\n".join([*bindings, f"Trainer.seed = {seed}"]))
    for file in ("config.gin", "operative_config.gin"):
        (folder / file).write_text(write_gin(settings))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    for split, found in (evaluations or {}).items():
        scalars = found if isinstance(found, dict) else {"bits_per_token": found}
        content = {"step": 10**9, "split": split, **scalars}
        (folder / f"evaluation_{split}.json").write_text(json.dumps(content))
    if rung:
        (folder / "rung.json").write_text(json.dumps(rung))
    return folder
