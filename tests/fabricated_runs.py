"""Run folders with made-up numbers, as `brt.train` and `brt.evaluate` would leave them."""

import json
from pathlib import Path

import numpy as np
from fabricated_recordings import fabricate

from brt.data.sources import Document
from brt.data.token_store import TokenStore, write_store
from brt.data.vocabularies import ByteVocabulary
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


def make_store(folder, texts):
    """A store of bytes, one document a text."""
    documents = [Document(f"text {n}", text.encode()) for n, text in enumerate(texts)]
    write_store(folder, documents, ByteVocabulary(), {}, quiet=True)
    return TokenStore(folder)


def add_recording(run, store, state, nats_T, segment_length=64, done=None):
    """A recording of every token of a store, as `brt.evaluate --record` leaves it."""
    folder = run / "recordings" / f"validation-{state}"
    by_document = np.split(np.asarray(nats_T), np.cumsum(store.lengths_D)[:-1])
    fabricate(
        folder, store, by_document, done, state=state, segment_length=segment_length, run=str(run)
    )
    return folder
