"""Imports point down only: every import of brt/ against one list of layers."""

import ast
from pathlib import Path

import pytest
from paths import ROOT

LAYERS = (
    ("brt",),
    ("brt.storage", "brt.bindings"),
    ("brt.bindings.registration", "brt.storage.regular_files"),
    (
        *("brt.checks", "brt.slurm", "brt.terminal"),
        *("brt.storage.file_parts", "brt.storage.replaced_files", "brt.storage.tensor_files"),
    ),
    (
        *("brt.bindings.gin_files",),
        *("brt.compilation_cache", "brt.progress"),
        *("brt.processes", "brt.token_ids"),
    ),
    ("brt.bindings.bound_values", "brt.storage.json_files"),
    ("brt.bindings.registry",),
    ("brt.bindings.errors",),
    ("brt.bindings.reading",),
    ("brt.config",),
    ("brt.models", "brt.data"),
    ("brt.memory",),
    ("brt.pretrained",),
    ("brt.training",),
    ("brt.evaluation",),
    ("brt.experiment_checks",),
    ("brt.experiment", "brt.text_flag"),
    ("brt.model_folder",),
    ("brt.description", "brt.generation"),
    ("brt.studies",),
    ("brt.reporting",),
    ("brt.benchmarks",),
    ("brt.sweeps",),
    ("brt.command_line",),
    ("brt.run_data",),
    ("brt.benchmark", "brt.evaluate", "brt.export", "brt.generate", "brt.prepare", "brt.report"),
    ("brt.sweep",),
    ("brt.train", "brt.__main__"),
)
"""From the bottom. A module imports its own package and those of layers below, and neither its
neighbours in a layer nor what is above it. `registration` names packages above it as texts, and
imports them when a config is parsed."""

HEIGHTS = {package: height for height, layer in enumerate(LAYERS) for package in layer}


def module_name(path: Path, root: Path) -> str:
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def package_of(module: str) -> str:
    """The longest name of the list that the module is or lies in."""
    parts = module.split(".")
    for length in range(len(parts), 1, -1):
        if ".".join(parts[:length]) in HEIGHTS:
            return ".".join(parts[:length])
    return "brt" if module == "brt" else "none"


def imported(path: Path, root: Path) -> set[str]:
    """Modules of brt that a file imports when it runs, in functions too."""
    found = set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                module = module_name(path, root).split(".")
                package = module if path.name == "__init__.py" else module[:-1]
                above = package[: len(package) - node.level + 1]
                base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = root.joinpath(*base.split("."), alias.name)
                is_module = inner.with_suffix(".py").is_file() or inner.is_dir()
                found.add(f"{base}.{alias.name}" if is_module else base)
    return {name for name in found if name.split(".")[0] == "brt"}


def upward(root: Path) -> list[str]:
    """Imports that do not point down, as "importer imports imported"."""
    wrong = []
    for path in sorted((root / "brt").rglob("*.py")):
        name = module_name(path, root)
        own = package_of(name)
        for target in sorted(imported(path, root)):
            package = package_of(target)
            listed = own in HEIGHTS and package in HEIGHTS
            if not listed or (package != own and HEIGHTS[package] >= HEIGHTS[own]):
                wrong.append(f"{name} imports {target}")
    return wrong


def test_every_import_points_down():
    assert not upward(ROOT)


def test_every_module_has_a_layer():
    names = [module_name(path, ROOT) for path in (ROOT / "brt").rglob("*.py")]
    assert len(names) > 100
    assert not [name for name in names if package_of(name) not in HEIGHTS]


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("brt/models/model.py", "from brt.training.train_step import trained_weights"),
        ("brt/models/model.py", "def f():\n    from brt.data.corpus import Corpus"),
        ("brt/data/corpus.py", "from ..models import caches"),
        ("brt/training/loop.py", "import brt.evaluation.evaluator"),
        ("brt/evaluation/reading.py", "from brt import experiment"),
        ("brt/evaluation/reading.py", "from brt.studies.reach import reach"),
        ("brt/evaluate.py", "from brt import generate"),
        ("brt/loose.py", "from brt.progress import Progress"),
    ],
)
def test_an_import_that_points_up_or_sideways_is_found(tmp_path, file, line):
    """In a copy of the tree in which a file holds one such import and nothing else."""
    for path in (ROOT / "brt").rglob("*.py"):
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.touch()
    (tmp_path / file).write_text(line)
    (found,) = upward(tmp_path)
    assert found.startswith(module_name(tmp_path / file, tmp_path))
