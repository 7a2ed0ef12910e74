"""The notebooks are clean, name what exists, and run from top to bottom at toy size."""

import ast
import json
import os
import re
import subprocess
import sys

import pytest
from paths import ROOT
from quick_commands import quick_environment

NOTEBOOKS = sorted((ROOT / "scripts" / "colab").glob("*.ipynb"))
SMALL = (
    "--gin.Trainer.tokens_per_step=64 --gin.Trainer.segment_length=16 "
    "--gin.BlockRecurrentTransformer.window=8 "
    "--gin.BlockRecurrentTransformer.width=8 --gin.BlockRecurrentTransformer.num_heads=2 "
    "--gin.BlockRecurrentTransformer.head_size=4 "
    "--gin.BlockRecurrentTransformer.feed_forward_size=8 "
    "--gin.BlockRecurrentTransformer.num_layers=3 "
    "--gin.Trainer.log_every=1"
)


def code_of(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def test_there_are_the_notebooks_the_readme_names():
    names = set(re.findall(r"`(\w+)\.ipynb`", (ROOT / "README.md").read_text(encoding="utf-8")))
    assert names == {path.stem for path in NOTEBOOKS} and len(names) == 5


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stripped_and_begins_with_an_installation_in_place(path):
    content = json.loads(path.read_text(encoding="utf-8"))
    for cell in content["cells"]:
        assert cell["cell_type"] == "markdown" or (
            cell["outputs"] == [] and cell["execution_count"] is None
        )
    first = code_of(path)[0]
    assert "git clone" in first and re.search(r"pip install .*-e ", first)
    assert code_of(path)[1].startswith("STEPS = ")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_s_python_parses_and_its_files_and_modules_exist(path):
    for code in code_of(path):
        ast.parse(re.sub(r"^(\s*)[!%].*", r"\1pass", code, flags=re.M))
        for module in re.findall(r"(?:python -m|from) (brt[\w.]*)", code):
            name = module.replace(".", "/")
            assert (ROOT / f"{name}.py").exists() or (ROOT / name).is_dir(), module
        for file in re.findall(r"configs/[\w/]+\.gin", code):
            assert (ROOT / file).exists(), file


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(path, tmp_path):
    pytest.importorskip("nbclient", reason='notebooks need pip install -e ".[report,notebooks]"')
    pytest.importorskip("ipykernel", reason='notebooks need pip install -e ".[report,notebooks]"')
    (tmp_path / "configs").symlink_to(ROOT / "configs")
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
    extra = SMALL
    if any("quickstart.gin" in "".join(cell["source"]) for cell in code[2:]):
        extra += f" --gin.SourceTree.path='\"{tmp_path}/source\"'"
    code[0]["source"] = ["import os\n"]
    toy = {
        "STEPS = 400": "STEPS = 2",
        'EXTRA = ""': f"EXTRA = {extra!r}",
        "TOKENS = 300": "TOKENS = 9",
    }
    text = "".join(code[1]["source"])
    for old, new in toy.items():
        text = text.replace(old, new)
    code[1]["source"] = text.splitlines(keepends=True)
    copy = tmp_path / path.name
    copy.write_text(json.dumps(content))
    command = "from nbclient.cli import NbClientApp; NbClientApp.launch_instance()"
    environment = quick_environment(tmp_path.parent)
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *sys.path])
    environment["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    found = subprocess.run(
        [sys.executable, "-c", command, "--inplace", str(copy)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr[-3000:]
    for cell in json.loads(copy.read_text())["cells"]:
        for output in cell.get("outputs", []):
            assert "Error:" not in "".join(output.get("text", [])), output
