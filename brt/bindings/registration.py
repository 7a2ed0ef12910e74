"""Imports the modules that define a config's configurables, by an index read from the sources."""

import functools
import importlib
import importlib.util
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

PACKAGES = ("models", "pretrained", "data", "training", "evaluation", "studies")
DECORATED = re.compile(
    r"^@(?:gin\.)?configurable(?:\(denylist=\[.*\]\))?\n(?:@.*\n)*(?:class|def) (\w+)", re.MULTILINE
)
"""A class or function under its own name: `@gin.configurable(denylist=["rngs"])`."""


@functools.cache
def modules_by_name() -> Mapping[str, Sequence[str]]:
    """Returns the modules that define each configurable name."""
    index: dict[str, list[str]] = {}
    for package in PACKAGES:
        spec = importlib.util.find_spec(f"brt.{package}")
        for folder in map(Path, (spec and spec.submodule_search_locations) or ()):
            for file in sorted(folder.rglob("*.py")):
                parts = ["brt", package, *file.relative_to(folder).with_suffix("").parts]
                for name in DECORATED.findall(file.read_text(encoding="utf-8")):
                    index.setdefault(name, []).append(".".join(parts).removesuffix(".__init__"))
    return index


def register(text: str) -> None:
    index = modules_by_name()
    for name in {*re.findall(r"\w+", re.sub(r"#.*", "", text))} & index.keys():
        for module in index[name]:
            importlib.import_module(module)


@functools.cache
def register_all() -> None:
    for module in sorted(set().union(*modules_by_name().values())):
        importlib.import_module(module)
