"""The files of a study, and what the terminal shows of it.

They go to `RUN/studies/<NAME>.json`, or `<NAME>-<other>.json` where something is set beside the
run. docs/evaluation.md and docs/studies.md say what is in them.
"""

import io
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from brt.data.stores.writer import replace_json
from brt.reporting.studies import (
    attention,
    attention_length,
    compare,
    continuations,
    memory_use,
    positions,
    reach,
    recl,
)
from brt.reporting.studies.content import Content
from brt.storage.paths import RemotePath, as_path
from brt.studies.registry import WITH_MANY, Study

SHOWN = 300
"""Characters of a context that the terminal shows, its last."""
PLACES = {
    "window": "within the window",
    "segment": "within the segment",
    "beyond": "before the segment",
}
"""Where an excerpt's word was seen last, in words."""

PRESENTED: dict[str, Callable[[Any], Content]] = {
    "attention": attention.present,
    "compare": compare.present,
    "memory_use": memory_use.present,
    "reach": reach.present,
    "positions": positions.present,
    "recl": recl.present,
    "attention_length": attention_length.present,
    "continuations": continuations.present_continuations,
    "topics": continuations.present_topics,
}
"""Name of a study to what makes its content of what was measured."""


def study_content(study: Study) -> Content:
    """Returns what the study's file holds."""
    heads: Content = {
        "study": study.name,
        "run": study.run,
        "step": study.step,
        "split": study.split,
    }
    if study.name in WITH_MANY:
        heads["others"] = study.others
    elif study.others:
        heads["other"] = study.others[0]
    elif study.against:
        heads["against"] = study.against
    return {**heads, "documents": study.documents, **PRESENTED[study.name](study.found)}


def write_study(content: Content) -> str:
    """Writes a study to its run folder; returns the file's path.

    One with another run beside it, or another change of the state, has a file of its own. Arrays go
    to an .npz beside it, which the study then names. The tables of `recl` stand beside it as CSV.

    Args:
        content: of `study_content`.
    """
    folder = as_path(content["run"]) / "studies"
    folder.mkdir(exist_ok=True)
    beside = content.get("against")
    if "other" in content:
        beside = Path(content["other"]).resolve().name
    name = f"{content['study']}-{beside}.json" if beside else f"{content['study']}.json"
    if arrays := content.get("arrays"):
        content = content | {"arrays": f"{Path(name).stem}.npz"}
        _write_arrays(folder / content["arrays"], arrays)
    replace_json(folder, name, content)
    if "gains" in content:
        for part, text in recl.as_csv(content).items():
            (folder / f"{content['study']}-{part}.csv").write_text(text, encoding="utf-8")
    return str(folder / name)


def _write_arrays(path, arrays):
    """Writes an .npz that appears when it is whole."""
    if isinstance(path, RemotePath):
        file = io.BytesIO()
        np.savez_compressed(file, **arrays)
        path.write_bytes(file.getvalue())
        return
    new = path.with_name(f"{path.name}.new")
    with open(new, "wb") as file:
        np.savez_compressed(file, **arrays)
    os.replace(new, path)


def _word(entry):
    """Returns the word that an excerpt's kind and distance are of, if it is more than the token."""
    word = entry.get("word")
    return f"in {word!r}, " if word and word != entry["text"].strip() else ""


def table(content: Content) -> str:
    """Returns a study as aligned lines: numbers, curves in short, excerpts, verdict.

    Args:
        content: of `study_content`.
    """
    beside = f" beside {content['other']}" if "other" in content else ""
    beside += f", state kept against {content['against']}" if "against" in content else ""
    lines = [f"{content['study']}: {content['run']} at step {content['step']:,}, "]
    lines[0] += f"{content['split']}{beside}"
    width = max([len(name) for name in content["numbers"]], default=0)
    for name, value in content["numbers"].items():
        text = f"{value:,}" if isinstance(value, int) else f"{value:,.6f}"
        lines.append(f"  {name:<{width}} {text:>16}")
    for series in content["series"]:
        if len(series["x"]) <= 20:
            lines.append(f"  {series['name']}: {series['x_label']}, {series['y_label']}")
            lines += [f"  {x:>12,} {y:>z14,.6f}" for x, y in zip(series["x"], series["y"])]
    for entry in content.get("excerpts", ()):
        seen = entry["last_seen"]
        ago = "not seen before"
        if seen is not None:
            ago = f"seen {seen:,} token{'s' * (seen != 1)} ago, {PLACES[entry['where']]}"
        bits = [entry[name] / math.log(2) for name in ("nats", "other_nats")]
        lines.append(
            f"\n  {entry['title']}, {entry['direction']} {entry['rank'] + 1}: token "
            f"{entry['token']:,}, {bits[0]:.4f} against {bits[1]:.4f} bits, "
            f"{_word(entry)}{entry['kind']}, {ago}{', recalled' * entry['recalled']}"
        )
        shown = f"{entry['before']}|{entry['text']}|{entry['after']}"
        lines.append("    " + " ".join(shown.split()))
    for entry in content.get("passages", ()):
        lines.append(f"\n  {entry['title']}, token {entry['token']:,}")
        lines.append(f"    ... {' '.join(entry['context'][-SHOWN:].split())}")
        for name, text in entry["written"].items():
            lines.append(f"    {name}: {' '.join(text.split())}")
    return "\n".join([*lines, "", content["verdict"]])
