"""Names of a sweep's entries: of files, and short labels."""

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

AS_CONFIGURED = "as configured"
OF_EVALUATION = ("Evaluation.", "evaluation/")
"""Beginnings of bindings whose last words are ambiguous with those of training."""
EMPTY = r"""\(\)|\[\]|\{\}|(?<==)(""|'')$"""
"""Empty values, invisible in the name of a file."""
LONGEST = 230
"""Characters of a file's name, of 255 with `-seed` and an ending."""


def file_name(config: str, changes: Sequence[str]) -> str:
    """Returns the name of an entry's files: `quickstart-RecurrentCell.gate_lstm`."""
    changes = [re.sub(EMPTY, "empty", change) for change in changes]
    stems = [Path(file).stem for file in config.split("+")]
    name = "-".join([*stems, *(re.sub(r"[^\w.-]+", "_", change).strip("_") for change in changes)])
    if len(name) <= LONGEST:
        return name
    mark = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name[: LONGEST - len(mark) - 1]}-{mark}"


def short_labels(entries: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    """Returns what distinguishes each entry: `recurrent_layers=(), gate=lstm`.

    Hides what all entries share, and the owner of a parameter where its name is unique.
    """
    files = [[_plain(file) for file in config.split("+")] for config, _ in entries]
    bindings = [[_plain(change) for change in changes] for _, changes in entries]
    names = {name.partition("=")[0] for changes in bindings for name in changes}
    last = Counter(name.rpartition(".")[2] for name in names)
    labels = []
    shared = set.intersection(*(set(own + bound) for own, bound in zip(files, bindings)))
    for own, bound in zip(files, bindings):
        parts = [file for file in own if len(entries) == 1 or file not in shared]
        for change in (change for change in bound if len(entries) == 1 or change not in shared):
            name, equals, value = change.partition("=")
            short = name.rpartition(".")[2]
            is_clear = last[short] == 1 and not name.startswith(OF_EVALUATION)
            parts.append(f"{short if is_clear else name}{equals}{value}")
        labels.append(", ".join(parts) or AS_CONFIGURED)
    return labels


def _plain(word):
    if "=" not in word:
        return str(Path(word).with_suffix("")) if word.endswith(".gin") else word
    name, _, value = word.partition("=")
    return f"{name}={value.strip(chr(34) + chr(39))}"
