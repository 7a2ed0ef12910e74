"""The notebooks are clean, name what exists, and run from top to bottom at toy size."""

import ast
import importlib.util
import json
import os
import re
import runpy
import subprocess
import sys

import jax
import pytest
from gin_settings import bound
from paths import ROOT
from tiny_run import quick_environment

NOTEBOOKS = sorted((ROOT / "scripts" / "colab").glob("*.ipynb"))
SIZES = dict(window=8, width=8, num_heads=2, head_size=4, feed_forward_size=8, num_layers=3)
SMALL = (
    *bound("Trainer", tokens_per_step=64, segment_length=16, log_every=1),
    *bound("BlockRecurrentTransformer", **SIZES),
)


def code_of(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def without_magics(code):
    return re.sub(r"^(\s*)[!%].*", r"\1pass", code, flags=re.M)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stripped_and_starts_with_an_installation(path):
    content = json.loads(path.read_text(encoding="utf-8"))
    for cell in content["cells"]:
        assert cell["cell_type"] == "markdown" or (
            cell["outputs"] == [] and cell["execution_count"] is None
        )
    first = code_of(path)[0]
    assert first == code_of(NOTEBOOKS[0])[0]
    assert "git clone" in first and "scripts/colab/install.py" in first
    assert "OWNER" not in first
    assert code_of(path)[1].startswith("STEPS = ")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_a_notebook_names_exists(path):
    for code in code_of(path):
        for node in ast.walk(ast.parse(without_magics(code))):
            if isinstance(node, ast.ImportFrom) and node.module.startswith("brt"):
                exec(ast.unparse(node), {})
        for module in re.findall(r"python -m (brt[\w.]*)", code):
            assert importlib.util.find_spec(module), module
        for file in re.findall(r"configs/[\w/]+\.gin", code):
            assert (ROOT / file).exists(), file


def test_the_notebook_of_the_page_is_up_to_date():
    script = runpy.run_path(str(ROOT / "scripts" / "colab" / "write_from_python.py"))
    written = script["NOTEBOOK"].read_text(encoding="utf-8")
    assert written == script["notebook"](), "run python scripts/colab/write_from_python.py"


PLUGIN = {"jax-cuda12-plugin": "0.11.0", "jax-cuda12-pjrt": "0.11.0"}
USABLE = {"jax": "0.11.0", "jaxlib": "0.11.0"}
OLD = {"jax": "0.7.2", "jaxlib": "0.7.2", "jax-cuda12-plugin": "0.7.2"}


@pytest.mark.parametrize(
    ("packages", "driver", "extra", "kept"),
    [
        (USABLE | PLUGIN, 550, None, True),
        (USABLE, None, None, True),
        (USABLE, 550, "gpu12", False),
        (OLD, 550, "gpu12", False),
        (OLD, 580, "gpu", False),
        (OLD, None, None, False),
        ({}, None, None, False),
        ({}, 535, "gpu12", False),
        ({"jax": "0.7.2", "libtpu": "0.0.17"}, None, "tpu", False),
    ],
)
def test_jax_is_kept_or_installed_with_its_plugin(packages, driver, extra, kept):
    install = installer()
    extras, pins = install["plan"](packages, driver)
    assert set(extras) == {"report", "notebooks", "text"} | ({extra} - {None})
    assert pins == (
        [f"{name}=={version}" for name, version in sorted(packages.items())] if kept else []
    )


def installer():
    return runpy.run_path(str(ROOT / "scripts" / "colab" / "install.py"))


def looked_at(monkeypatch, devices, driver, returncode=0):
    install = installer()
    done = subprocess.CompletedProcess([], returncode, devices, "reasons")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    install["look_at_devices"](driver)


def test_a_gpu_that_jax_does_not_use_stops_the_notebook(monkeypatch, capsys):
    with pytest.raises(SystemExit, match="JAX"):
        looked_at(monkeypatch, "0.11.0 cpu [CpuDevice(id=0)]\n", 550)
    looked_at(monkeypatch, "0.11.0 gpu [CudaDevice(id=0)]\n", 550)
    assert "CudaDevice" in capsys.readouterr().out
    looked_at(monkeypatch, "0.11.0 cpu [CpuDevice(id=0)]\n", None)
    assert "No GPU" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="cannot be imported"):
        looked_at(monkeypatch, "", 550, returncode=1)


def test_a_failing_installation_stops_the_notebook(monkeypatch):
    with pytest.raises(SystemExit, match="pip install nothing-of-this` failed"):
        done = subprocess.CompletedProcess([], 1, "", "no such package")
        monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
        installer()["pip"]("install", "nothing-of-this")


def test_this_python_passes_the_look_at_its_devices(capsys):
    install = installer()
    install["look_at_devices"](None)
    assert f"JAX {jax.__version__}" in capsys.readouterr().out
    assert jax.__version__ in install["allowed_jax"]()
    assert install["jax_packages"]()["jax"] == jax.__version__


def executed(content, path, tmp_path):
    """Runs a notebook in a folder with configs/ and scripts/, without installing anything."""
    pytest.importorskip("nbclient", reason='notebooks need pip install -e ".[report,notebooks]"')
    pytest.importorskip("ipykernel", reason='notebooks need pip install -e ".[report,notebooks]"')
    for name in ("brt", "configs", "scripts", "setup.py"):
        (tmp_path / name).symlink_to(ROOT / name)
    first = next(cell for cell in content["cells"] if cell["cell_type"] == "code")
    code = "".join(first["source"]).replace('["install"]', '["stop_at_failures"]')
    first["source"] = code.splitlines(keepends=True)
    copy = tmp_path / path.name
    copy.write_text(json.dumps(content))
    command = "from nbclient.cli import NbClientApp; NbClientApp.launch_instance()"
    environment = quick_environment()
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *sys.path])
    environment["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    return copy, subprocess.run(
        [sys.executable, "-c", command, "--inplace", str(copy)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )


def test_a_notebook_elsewhere_names_the_folder_it_needs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, installed = without_magics(code_of(NOTEBOOKS[0])[0]), []
    with pytest.raises(SystemExit, match="SOURCE"):
        exec(code, {})
    install = {"install": lambda shell: installed.append(os.getcwd())}
    monkeypatch.setattr(runpy, "run_path", lambda path: install)
    exec(code.replace('SOURCE = ""', f"SOURCE = {str(ROOT)!r}"), {"get_ipython": dict})
    assert installed == [str(ROOT)]


def test_a_failing_cell_stops_a_notebook_with_a_sentence(tmp_path):
    path = NOTEBOOKS[0]
    content = json.loads(path.read_text(encoding="utf-8"))
    content["cells"] = [cell for cell in content["cells"] if cell["cell_type"] == "code"][:2]
    content["cells"][1]["source"] = ["!exit 3\n", "open('reached', 'w')"]
    _, found = executed(content, path, tmp_path)
    assert "The command above failed: its last lines say why." in found.stderr
    assert found.returncode != 0 and not (tmp_path / "reached").exists()


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(path, tmp_path):
    (tmp_path / "source").mkdir()
    for split in ("train", "validation"):
        (tmp_path / "text" / split).mkdir(parents=True)
    for number in range(30):
        text = f"def name_{number}(x):\n    return x + {number}\n" * 9
        (tmp_path / "source" / f"m{number}.py").write_text(text)
        split = "train" if number % 3 else "validation"
        (tmp_path / "text" / split / f"{number}.txt").write_text(text)
    content = json.loads(path.read_text(encoding="utf-8"))
    code = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
    extra = " ".join(f"--gin.{line.replace(' ', '')}" for line in SMALL)
    if any("quickstart.gin" in "".join(cell["source"]) for cell in code[2:]):
        extra += f" --gin.SourceTree.path='\"{tmp_path}/source\"'"
    toy = {
        "STEPS = 400": "STEPS = 2",
        'EXTRA = ""': f"EXTRA = {extra!r}",
        "TOKENS = 300": "TOKENS = 9",
    }
    text = "".join(code[1]["source"])
    for old, new in toy.items():
        text = text.replace(old, new)
    code[1]["source"] = text.splitlines(keepends=True)
    copy, found = executed(content, path, tmp_path)
    assert found.returncode == 0, found.stderr[-3000:]
    for cell in json.loads(copy.read_text())["cells"]:
        for output in cell.get("outputs", []):
            assert "Error:" not in "".join(output.get("text", [])), output
