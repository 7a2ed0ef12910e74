"""The README is true: its files, flags and Python exist and run."""

import re
import shlex
import subprocess
import sys

import pytest
from absl import flags
from paths import ROOT
from tiny_run import command, shared_programs  # noqa: F401

from brt import benchmark as benchmark_command  # noqa: F401  (defines the flags)
from brt import config
from brt import evaluate as evaluate_command  # noqa: F401  (defines the flags)
from brt import generate as generate_command
from brt import prepare as prepare_command  # noqa: F401  (defines the flags)
from brt import report as report_command  # noqa: F401  (defines the flags)
from brt import train as train_command  # noqa: F401  (defines the flags)
from brt.evaluate import COUNTS
from brt.evaluation import recording
from brt.evaluation.perplexity import per_text, per_token
from brt.evaluation.reading import STATE_ABLATIONS
from brt.experiment import Experiment
from brt.studies.registry import STUDIES, Choices
from brt.training.settings import FREE_TO_CHANGE

README = (ROOT / "README.md").read_text(encoding="utf-8")
EVALUATION = (ROOT / "brt" / "evaluation" / "README.md").read_text(encoding="utf-8")


def block(language, containing):
    blocks = [text.split("\n", 1) for text in README.split("```")[1::2]]
    return next(text for name, text in blocks if name == language and containing in text)


def test_every_file_of_the_tree_exists_and_every_module_is_in_it():
    tree, folder, named = block("", "the commands"), "", set()
    for line in tree.splitlines():
        if not line.startswith(" "):
            folder = line.split()[0]
            named.add(folder)
        else:
            entries = re.match(r"  ((?:[\w/]+(?:\.py|/)\s*)+)", line)
            named |= {folder + name for name in entries[1].split()}
    for name in named:
        assert (ROOT / name).exists(), f"{name} is in the README's tree only"
    modules = {f"brt/{path.name}" for path in (ROOT / "brt").glob("*.py")} - {"brt/__init__.py"}
    assert modules <= named


def test_no_row_of_a_table_is_cut_off_from_it():
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "brt").rglob("*.md")]:
        without_code = re.sub(
            r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.S | re.M
        )
        for table in re.findall(r"(?:^\|.*\n)+", without_code, re.M):
            second = [*table.split("\n"), ""][1]
            assert re.fullmatch(r"\|[-:| ]+\|", second), f"{page}: {table[:80]}"


def test_every_flag_and_every_linked_or_named_file_exists():
    for flag in re.findall(r"`--(\w+)", README + EVALUATION):
        assert flag in ("gin", "slow", "help") or flag in flags.FLAGS, flag
    table = README[README.index("| folder | what is in it |") :].split("\n\n")[0]
    named = set(re.findall(r"`(\w+)/`", table))
    assert named == {path.name for path in (ROOT / "configs").iterdir() if path.is_dir()}
    for name in re.findall(r"\b(?:configs|scripts|brt|tests)/[\w/.]+\.\w+", README):
        assert (ROOT / name).exists(), name
    for page in [*ROOT.glob("brt/*/README.md"), ROOT / "BENCHMARKS.md"]:
        for name in re.findall(r"\bconfigs/[\w/]+\.(?:gin|txt)", page.read_text(encoding="utf-8")):
            assert (ROOT / name).exists(), f"{page} names {name}"
    for config_name in re.findall(r"`((?:pg19_|transformer_xl/|rmt/|small/)\w+)`", README):
        assert (ROOT / "configs" / f"{config_name}.gin").exists(), config_name


def training_commands():
    """Gin files and bindings of every training command of the README and the benchmarks."""
    text = README + (ROOT / "BENCHMARKS.md").read_text(encoding="utf-8")
    for line in re.findall(r"^python -m brt\.train (.*)", text.replace("\\\n", " "), re.M):
        words = shlex.split(line)
        files = [w[11:] for w in words if w.startswith("--gin_file=")]
        bound = [w[6:].split("=", 1) for w in words if w.startswith("--gin.")]
        if files and "$" not in line:
            yield ["+".join(files), *(f"{name} = {value}" for name, value in bound)]


def test_the_commands_name_systems_and_corpora():
    found = [line[0] for line in training_commands()]
    assert len(found) >= 10 and sum("+" in files for files in found) >= 7


@pytest.mark.parametrize(
    "arguments",
    [
        *training_commands(),
        ["configs/quickstart.gin"],
        ["configs/quickstart.gin", 'RecurrentCell.gate = "fixed"'],
        [
            "configs/small/rec_fixed_skip.gin+configs/corpora/text.gin",
            'TextFiles.path = "books/{split}"',
        ],
    ],
)
def test_the_commands_of_the_readme_build(arguments):
    files = "+".join(str(ROOT / file) for file in arguments[0].split("+"))
    config.parse([files], arguments[1:])
    Experiment.from_gin()


@pytest.mark.slow
def test_the_python_and_the_writing_of_the_readme_run_on_a_run_folder(tmp_path, monkeypatch):
    config_file = tmp_path / "tiny.gin"
    config_file.write_text(
        f'include "{ROOT}/configs/small/rec_fixed_skip.gin"\n'
        f'include "{ROOT}/configs/corpora/text.gin"\n'
        f'TextFiles.path = "{tmp_path}/text"\nCorpus.store = "{tmp_path}/store"\n'
        "Trainer.steps = 1\nTrainer.eval_every = 0\nBlockRecurrentTransformer.width = 8\n"
        "cosine.warmup_steps = 0\n"
        "BlockRecurrentTransformer.feed_forward_size = 8\n"
        "BlockRecurrentTransformer.num_layers = 3\n"
    )
    (tmp_path / "text").mkdir()
    for number in range(8):
        (tmp_path / "text" / f"{number}.txt").write_text("some words " * 50)
    trained = subprocess.run(
        [
            *(sys.executable, "-m", "brt.train", f"--gin_file={config_file}"),
            f"--workdir={tmp_path}/runs/quickstart",
        ],
        capture_output=True,
        text=True,
    )
    assert trained.returncode == 0, trained.stderr

    def shown(*containing):
        """What the blocks that contain these print, run beside the run folder."""
        code = "".join(block("python", part) for part in containing)
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    first, *losses = (
        float(line.split(":")[1]) for line in shown("token_losses", "train_step").splitlines()
    )
    assert first > 0
    assert len(losses) == 3 and losses[-1] < losses[0]
    assert shown("Generator")
    size = (tmp_path / "book.memory").stat().st_size

    monkeypatch.chdir(tmp_path)
    (tmp_path / "book.txt").write_text("some words " * 50)
    lines = block("bash", "brt.generate").replace("\\\n", "").splitlines()
    assert len(lines) == 3
    for line in lines:
        assert not command(monkeypatch, generate_command, *shlex.split(line)[3:]), line
    assert (tmp_path / "book.memory").stat().st_size == size


def test_what_may_change_on_resume_is_listed():
    (paragraph,) = re.findall(
        r"These may differ: (.*?)\.\s+Any other is refused", README, re.DOTALL
    )
    names = re.findall(r"`([\w.]+)`", paragraph)
    whole = {name for name in names if name[0].isupper() and "." not in name}
    dotted = {name if "." in name else f"Trainer.{name}" for name in names if name not in whole}
    assert {f"{name}." for name in whole} | {f"{name}:" for name in dotted} == set(FREE_TO_CHANGE)


def test_studies_and_their_flags_are_those_of_the_command():
    for text in (README, EVALUATION):
        assert set(re.findall(r"--study=(\w+)", text)) == STUDIES.keys()
        assert set(re.findall(r"--against=(\w+)", text)) < STATE_ABLATIONS.keys()


def test_the_page_on_evaluation_lists_what_the_files_hold():
    for name in (*COUNTS, *recording.FILES, *recording.IDENTITY, *Choices._fields[1:2]):
        assert f"`{name}`" in EVALUATION or f"`{name}.bin`" in EVALUATION, name
    scalars = per_token(1.0, 1.0) | per_text(1.0, dict.fromkeys((*COUNTS, "words"), 1))
    assert all(f"`{name}`" in EVALUATION for name in scalars)


def test_training_never_imports_tensorflow():
    code = "import sys, brt.train; assert not {'tensorflow', 'seqio'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)
