"""Run folders with made-up numbers, as `brt.train` and `brt.evaluate` would leave them."""

import json
from pathlib import Path

import numpy as np

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
    folder.mkdir(parents=True)
    entry = {name: store.manifest[name] for name in ("content", "vocabulary")}
    done = np.ones(store.num_documents, "u1") if done is None else np.array(done, "u1")
    manifest = {
        "format": 1,
        "store": {"folder": str(store.folder), **entry},
        "run": str(run),
        "step": 100,
        "state": state,
        "segment_length": segment_length,
        "window": 16,
        "documents": store.num_documents,
        "tokens": store.num_tokens,
        "complete": bool(done.all()),
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    np.asarray(nats_T, "<f4").tofile(folder / "nats.bin")
    (np.asarray(nats_T, "<f4") / 2).tofile(folder / "entropy.bin")
    np.ones(store.num_tokens, "u1").tofile(folder / "correct.bin")
    done.tofile(folder / "done.bin")
    return folder
