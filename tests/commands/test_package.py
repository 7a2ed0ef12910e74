"""brt as it is distributed: the wheel brings its configs along, the source archive its tests."""

import re
import shutil
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
from apart import run
from paths import CONFIGS, ROOT, SCRIPTS

import brt

TREE = ("brt", "configs", "docs", "scripts", "tests")
"""Folders of the checkout that belong to the project, and not to what was run in it."""


def test_changelog_and_citation_have_the_version_and_date():
    newest = re.search(r"^## (\S+) \((.*)\)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    citation = (ROOT / "CITATION.cff").read_text()
    assert newest[1] == brt.__version__ and f"\nversion: {newest[1]}\n" in citation
    assert newest[2] == "unreleased" or f"\ndate-released: {newest[2]}\n" in citation


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """The folder of a source archive, and of the wheel made from it, by `python -m build`."""
    pytest.importorskip("build", reason='needs pip install -e ".[dev]"')
    copy = tmp_path_factory.mktemp("checkout")
    for name in TREE:
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "runs")
        shutil.copytree(ROOT / name, copy / name, ignore=ignored if name == "brt" else None)
    for file in ROOT.iterdir():
        if file.is_file() and file.name != ".git":
            shutil.copy(file, copy / file.name)
    run(sys.executable, "-m", "build", "--no-isolation", cwd=copy)
    return copy / "dist"


def files_below(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_the_wheel_holds_every_config_and_no_test(dist):
    (wheel,) = dist.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {f"brt/configs/{name}" for name in files_below(CONFIGS)} <= names
    assert {f"brt/reporting/{name}" for name in ("page.css", "page.js", "reader.js")} <= names
    assert not [name for name in names if name.startswith(("tests/", "configs/"))]


def test_the_source_archive_holds_the_tests_and_what_they_read(dist):
    (archive,) = dist.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    for folder in ("tests", "configs", "scripts"):
        kept = {name for name in files_below(ROOT / folder) if "__pycache__" not in name}
        assert {f"{folder}/{name}" for name in kept} <= names
    assert {"pyproject.toml", "README.md", "CHANGELOG.md"} <= names


@pytest.fixture(scope="module")
def installed(dist, tmp_path_factory):
    """The Python of a new environment with the wheel; what it requires comes from this one."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", str(folder), cwd=folder)
    site = folder / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    (wheel,) = dist.glob("*.whl")
    pip = (sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install")
    run(
        *pip,
        "--no-deps",
        "--no-index",
        "--disable-pip-version-check",
        str(wheel),
        cwd=folder,
        PYTHONPATH="",
    )
    # Files with the ending .pth in a folder that such a file names are not read, so that an
    # editable brt stays unseen.
    paths = [path for path in sys.path if path.endswith("site-packages")]
    (site / "required.pth").write_text("\n".join(paths) + "\n")
    return folder / "bin" / "python"


def test_a_config_is_found_from_an_empty_folder(installed, tmp_path):
    name = "pg19_rec_fixed_skip.gin"
    command = (str(installed), "-m", "brt.train", f"--gin_file={name}", "--dry_run")
    # Described, though the vocabulary is not there.
    found = run(*command, cwd=tmp_path, status=1, PYTHONPATH="", JAX_PLATFORMS="cpu")
    (line,) = (line for line in found.split("\n") if line.startswith("parameters, non-embedding"))
    assert "160,463,992" in line
    package = run(
        *(str(installed), "-c", "import brt; print(brt.__file__)"), cwd=tmp_path, PYTHONPATH=""
    )
    assert Path(package).is_relative_to(installed.parent.parent)


@pytest.mark.slow
def test_the_wheel_generates_trains_and_exports(installed, tmp_path):
    pytest.importorskip("pyarrow", reason='needs pip install -e ".[tables]"')
    script = SCRIPTS / "check_wheel.sh"
    found = run("bash", script, installed, cwd=tmp_path, PYTHONPATH="", JAX_PLATFORMS="cpu")
    assert "generates the text of its run" in found


def test_a_command_runs_above_a_clone_that_is_named_brt(tmp_path):
    # Python takes the clone's folder for a namespace package, whose __path__ the finder of the
    # editable installation extends, and which has no __file__.
    (tmp_path / "brt").mkdir()
    (tmp_path / "beside.py").write_text(
        "import importlib.util, sys\n"
        "import brt\n"
        f"brt.__path__ = [{str(ROOT / 'brt')!r}]\n"
        "assert brt.__file__ is None\n"
        "from brt import command_line, train\n"
        "from brt.storage.shipped import configs_root\n"
        "assert (configs_root() / 'configs' / 'quickstart.gin').is_file()\n"
    )
    run(sys.executable, "beside.py", cwd=tmp_path, PYTHONPATH="")
