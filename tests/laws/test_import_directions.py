"""Imports point down only, and never in a circle.

All imports count: at the top of a file, in a function, and those for types alone.
"""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from paths import ROOT

LAYERS = (
    ("brt",),
    ("brt.storage", "brt.bindings"),
    ("brt.bindings.gin_private", "brt.storage.regular_files"),
    (
        *("brt.bindings.registry", "brt.checks", "brt.storage.file_parts"),
        *("brt.storage.replaced_files", "brt.storage.tensor_files"),
    ),
    ("brt.bindings.gin_files", "brt.host", "brt.token_ids"),
    ("brt.bindings.bound_values", "brt.storage.json_files"),
    ("brt.bindings.errors",),
    ("brt.bindings.read_bindings",),
    ("brt.config",),
    ("brt.models", "brt.data"),
    ("brt.memory",),
    ("brt.pretrained",),
    ("brt.training",),
    ("brt.experiment", "brt.command_line"),
    ("brt.evaluation", "brt.model_folder"),
    ("brt.run", "brt.generation"),
    ("brt.studies",),
    ("brt.reporting",),
    ("brt.benchmarks",),
    ("brt.sweeps",),
    ("brt.benchmark", "brt.evaluate", "brt.export", "brt.generate", "brt.prepare", "brt.report"),
    ("brt.sweep",),
    ("brt.train", "brt.__main__"),
)
"""From the bottom. A module imports its own package and packages of layers below, but no other
package of its layer or of layers above. `registry` names packages above it as texts, and
imports them when a config is parsed."""

HEIGHTS = {package: height for height, layer in enumerate(LAYERS) for package in layer}


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


FILES = {module_name(path): path for path in sorted((ROOT / "brt").rglob("*.py"))}


def package_of(module: str) -> str:
    """The longest name of the list that the module is or lies in."""
    parts = module.split(".")
    for length in range(len(parts), 1, -1):
        if ".".join(parts[:length]) in HEIGHTS:
            return ".".join(parts[:length])
    return "brt" if module == "brt" else "none"


def imported(name: str) -> set[str]:
    """Modules of brt that a module imports."""
    path = FILES[name]
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                module = name.split(".")
                package = module if path.name == "__init__.py" else module[:-1]
                above = package[: len(package) - node.level + 1]
                base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = ROOT.joinpath(*base.split("."), alias.name)
                is_module = inner.with_suffix(".py").is_file() or inner.is_dir()
                found.add(f"{base}.{alias.name}" if is_module else base)
    return {name for name in found if name.split(".")[0] == "brt"}


def top_package_of(module: str) -> str:
    return ".".join(module.split(".")[:2])


def folder_of_models(module: str) -> str:
    """A folder of brt.models, or a file beside them; elsewhere the package."""
    parts = module.split(".")
    return ".".join(parts[: 3 if parts[:2] == ["brt", "models"] else 2])


def test_every_import_points_down():
    wrong = []
    for name in FILES:
        own = package_of(name)
        for target in sorted(imported(name)):
            package = package_of(target)
            listed = own in HEIGHTS and package in HEIGHTS
            if not listed or (package != own and HEIGHTS[package] >= HEIGHTS[own]):
                wrong.append(f"{name} imports {target}")
    assert not wrong


def test_every_module_has_a_layer():
    assert len(FILES) > 100
    assert not [name for name in FILES if package_of(name) not in HEIGHTS]


@pytest.mark.parametrize("unit_of", [str, folder_of_models, top_package_of])
def test_no_imports_form_a_circle(unit_of):
    imports: dict[str, set[str]] = {}
    for name in FILES:
        units = {unit_of(target) for target in imported(name)}
        imports.setdefault(unit_of(name), set()).update(units - {unit_of(name)})
    TopologicalSorter(imports).prepare()  # a CycleError names the circle
