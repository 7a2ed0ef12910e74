"""Writes the file of a study, and prints it."""

import io
import math
from pathlib import Path
from typing import Annotated

import numpy as np

from brt.checks import OneOf
from brt.storage.json_files import DamagedFile, Fields, read_json
from brt.storage.paths import as_path
from brt.storage.replaced_files import replace_file, replace_json
from brt.studies.study import Content

SHOWN = 300
SEEN = {
    "window": "inside the window",
    "segment": "beyond the window, inside the segment",
    "beyond": "beyond the segment",
}


def write_study(content: Content) -> str:
    """Writes and prints a study; returns the file's path.

    The file is `RUN/studies/<study>.json`, or `<study>-<compared with>.json`. Arrays go to an .npz
    next to it and tables to CSV files. A file of another store, or of another run with the name of
    the compared one, is kept under the name of that store's or run's folder.
    """
    folder = as_path(content["run"]) / "studies"
    folder.mkdir(exist_ok=True)
    other = Path(content["other"]).resolve().name if "other" in content else None
    other = other or content.get("against")
    name = f"{content['study']}-{other}" if other else content["study"]
    _keep_earlier(folder, name, content)
    content = dict(content)
    tables = content.pop("csv", {})
    if arrays := content.get("arrays"):
        content["arrays"] = f"{name}.npz"
        np.savez_compressed(file := io.BytesIO(), **arrays)
        replace_file(folder, content["arrays"], file.getvalue())
    replace_json(folder, f"{name}.json", content)
    for part, text in tables.items():
        replace_file(folder, f"{content['study']}-{part}.csv", text.encode())
    return str(folder / f"{name}.json")


def _keep_earlier(folder, name, content):
    if not (folder / f"{name}.json").exists():
        return
    arrays = Annotated[str, OneOf((f"{name}.npz",))]
    form = Fields({}, {"store": str, "other": str, "arrays": arrays})
    try:
        earlier = read_json(folder / f"{name}.json", form, "it is replaced")
    except DamagedFile:
        return
    folders = [
        Path(earlier[key]).resolve().parent.name
        for key in ("store", "other")
        if key in earlier and Path(earlier[key]).resolve() != Path(content.get(key, "")).resolve()
    ]
    if not folders:
        return
    kept = f"{name}-{folders[0]}"
    if "arrays" in earlier:
        (folder / earlier["arrays"]).rename(folder / f"{kept}.npz")
        earlier["arrays"] = f"{kept}.npz"
    replace_json(folder, f"{kept}.json", earlier)


def compared_with(content: Content) -> str:
    if other := content.get("other"):
        return f", compared with {other}"
    against = content.get("against")
    return f", state kept compared with {against}" if against else ""


def table(content: Content) -> str:
    head = f"{content['study']}: {content['run']} at step {content['step']:,}, {content['split']}"
    lines = [f"{head}{compared_with(content)}"]
    width = max(map(len, content["numbers"]), default=0)
    for name, value in content["numbers"].items():
        text = f"{value:,}" if isinstance(value, int) else f"{value:,.6f}"
        lines.append(f"  {name:<{width}} {text:>16}")
    for series in content["series"]:
        if len(series["x"]) <= 20:
            lines.append(f"  {series['name']}: {series['x_label']}, {series['y_label']}")
            lines += [f"  {x:>12,} {y:>z14,.6f}" for x, y in zip(series["x"], series["y"])]
    for entry in content.get("excerpts", ()):
        lines += _excerpt(entry)
    for entry in content.get("passages", ()):
        lines.append(f"\n  {entry['title']}, token {entry['token']:,}")
        lines.append(f"    ... {' '.join(entry['context'][-SHOWN:].split())}")
        for name, text in entry["written"].items():
            lines.append(f"    {name}: {' '.join(text.split())}")
    return "\n".join([*lines, "", content["summary"]])


def _excerpt(entry):
    ago, seen, word = "not seen before", entry["last_seen"], entry.get("word")
    if seen is not None:
        ago = f"seen {seen:,} token{'s' * (seen != 1)} ago, {SEEN[entry['where']]}"
    bits, other = (entry[name] / math.log(2) for name in ("nats", "other_nats"))
    of_word = f"in {word!r}, " if word and word != entry["text"].strip() else ""
    yield (
        f"\n  {entry['title']}, {entry['direction']} {entry['rank'] + 1}: token "
        f"{entry['token']:,}, {bits:.4f} against {other:.4f} bits, "
        f"{of_word}{entry['kind']}, {ago}{', recalled' * entry['recalled']}"
    )
    text = visible(entry["text"])
    yield "    " + " ".join(f"{entry['before']}|{text}|{entry['after']}".split())


def visible(text: str) -> str:
    return text.replace("\n", "↵").replace("\t", "⇥")
