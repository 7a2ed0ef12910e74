"""Writes the file of a study, and prints it."""

import io
from pathlib import Path

import numpy as np

from brt.storage.paths import as_path
from brt.storage.replaced_files import replace_file, replace_json
from brt.studies.study import LN2, Content

SHOWN = 300
SEEN = {
    "window": "inside the window",
    "segment": "beyond the window, inside the segment",
    "beyond": "beyond the segment",
}


def write_study(content: Content) -> str:
    """Writes and prints a study; returns the file's path.

    The file is `RUN/studies/<study>.json`, or `<study>-<compared with>.json`, and replaces an
    earlier one. Arrays go to an .npz next to it.
    """
    folder = as_path(content["run"]) / "studies"
    folder.mkdir(exist_ok=True)
    other = _name_of_other(content) if "other" in content else content.get("against")
    name = f"{content['study']}-{other}" if other else content["study"]
    content = dict(content)
    if arrays := content.get("arrays"):
        content["arrays"] = f"{name}.npz"
        np.savez_compressed(file := io.BytesIO(), **arrays)
        replace_file(folder, content["arrays"], file.getvalue())
    replace_json(folder, f"{name}.json", content)
    return str(folder / f"{name}.json")


def _name_of_other(content):
    """Returns the name of the compared run: RUN next to the run itself, FOLDER-RUN elsewhere."""
    run, other = (Path(content[key]).resolve() for key in ("run", "other"))
    return other.name if other.parent == run.parent else f"{other.parent.name}-{other.name}"


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
        text = f"{entry['before']}|{visible(entry['text'])}|{entry['after']}"
        lines += [f"\n  {facts(entry)}", f"    {' '.join(text.split())}"]
    for entry in content.get("passages", ()):
        lines.append(f"\n  {entry['title']}, token {entry['token']:,}")
        lines.append(f"    ... {' '.join(entry['context'][-SHOWN:].split())}")
        for name, text in entry["written"].items():
            lines.append(f"    {name}: {' '.join(text.split())}")
    return "\n".join([*lines, "", content["summary"]])


def facts(excerpt: Content) -> str:
    """Returns a line of facts about an excerpt; any of its entries may be missing."""
    nats = [excerpt[name] for name in ("nats", "other_nats") if name in excerpt]
    seen, where, word = (excerpt.get(name) for name in ("last_seen", "where", "word"))
    ago = f"last seen {seen or 0:,} token{'s' * (seen != 1)} ago, {SEEN.get(str(where), where)}"
    known = {
        "direction": f"{excerpt.get('direction')} {excerpt.get('rank', 0) + 1}",
        "title": excerpt.get("title"),
        "token": f"token {excerpt.get('token', 0):,}",
        "nats": f"{' against '.join(f'{x / LN2:.4f}' for x in nats)} bits",
        "word": f"in {word!r}" if word and word != (excerpt.get("text") or "").strip() else "",
        "kind": excerpt.get("kind"),
        "last_seen": "not seen before" if seen is None else ago,
        "recalled": "title or author recalled" if excerpt.get("recalled") else "",
    }
    return " · ".join(text for name, text in known.items() if name in excerpt and text)


def visible(text: str) -> str:
    return text.replace("\n", "↵").replace("\t", "⇥")
