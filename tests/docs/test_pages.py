"""Code blocks of README and docs: Python runs, flags and files of commands exist, configs build.

A block with `title="FILE"` is a file that the page's commands may name. `py` blocks are not run.
"""

import importlib
import itertools
import re
import shlex
import sys

import apart
import pytest
from absl import flags
from paths import CONFIGS, ROOT
from tiny_run import build, command, quick_environment, write_corpus

from brt import config, evaluate, train
from brt.__main__ import COMMANDS
from brt.data.text_flag import CONFIG, text_bindings
from brt.experiment import Experiment

PAGES = [
    ROOT / "README.md",
    ROOT / "BENCHMARKS.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "benchmarks").glob("*.md")),
    *sorted((ROOT / "docs" / "results").glob("*.md")),
]
BLOCK = re.compile(r'^```(\w+)(?: title="(.*?)")?\n(.*?)^```', re.M | re.S)


def blocks(page, language, titled=False):
    found = BLOCK.findall(page.read_text(encoding="utf-8"))
    return [text for name, title, text in found if name == language and bool(title) == titled]


def commands(page):
    """Yields the words of each command of a page's shell blocks, from its Python or Bash on."""
    for text in blocks(page, "bash"):
        for line in text.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            for i, (word, after) in enumerate(itertools.pairwise(words)):
                if word in ("python", "bash"):
                    yield words[i:]
                elif word == "brt" and after in COMMANDS:
                    yield ["python", "-m", f"brt.{after}", *words[i + 2 :]]


def name_of(page):
    return str(page.relative_to(ROOT))


def experiments():
    """Yields files and bindings of the training commands that can be built here."""
    for page in PAGES:
        titles = {title for _, title, _ in BLOCK.findall(page.read_text()) if title}
        for words in commands(page):
            files = [word[11:] for word in words if word.startswith("--gin_file=")]
            text = [word[7:] for word in words if word.startswith("--text=")]
            bound = [word[6:].split("=", 1) for word in words if word.startswith("--gin.")]
            elsewhere = titles & {*files} or re.search(r"\$|Pretrained.folder", " ".join(words))
            if words[1:3] == ["-m", "brt.train"] and files and not elsewhere:
                files = [CONFIG] * len(text) + files
                bindings = [*(text_bindings(text[0]) if text else ()), *map(" = ".join, bound)]
                yield name_of(page), ("+".join(files), *bindings)


def flags_of(module):
    """Names of the flags of a command; two commands share `output`."""
    importlib.import_module(module)
    by_module = flags.FLAGS.flags_by_module_dict()
    modules = module, "brt.command_line", "brt.data.text_flag"
    return {"gin", "output", *(flag.name for name in modules for flag in by_module[name])}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_flags_and_files_of_commands_exist(page):
    for words in commands(page):
        if words[1] == "-m" and words[2].startswith("brt."):
            known = words[: words.index("--")] if "--" in words else words
            names = {name[1] for word in known[3:] if (name := re.match(r"--(\w+)", word))}
            assert names <= flags_of(words[2]), words
        elif words[1].endswith((".py", ".sh")):
            assert (ROOT / words[1]).exists(), words
    for name in re.findall(r"\b(?:configs|scripts)/[\w/]+\.\w+", page.read_text(encoding="utf-8")):
        assert (ROOT / name).exists(), name


def anchors(page):
    """Headings of a page as they are named in links to them."""
    headings = re.findall(r"^#+ (.+)", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_to_files_and_headings(page):
    links = re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?", page.read_text(encoding="utf-8"))
    for target, anchor in links:
        if not target.startswith("http"):
            file = page.parent / target if target else page
            assert file.exists(), target
            assert not anchor or anchor in anchors(file), (target, anchor)


@pytest.mark.parametrize("arguments", dict(experiments()).items(), ids=lambda pair: pair[0])
def test_a_page_s_last_training_command_builds(arguments):
    files, *bindings = arguments[1]
    config.parse(["+".join(str(ROOT / file) for file in files.split("+"))], bindings)
    Experiment.from_gin()


LAYERS = "num_layers = 1", "recurrent_layers = (0,)"


@pytest.fixture(scope="module")
def beside_a_run(folder):
    """A folder with `runs/quickstart`, a tiny run, and its recording."""
    write_corpus(folder / "text")
    (folder / "tiny.gin").write_text(
        f'include "{CONFIGS}/small/rec_fixed_skip.gin"\ninclude "{CONFIGS}/corpora/text.gin"\n'
        f'TextFiles.path = "{folder}/text/{{split}}"\nCorpus.store = "{folder}/store"\n'
        "Trainer.steps = 2\nTrainer.eval_every = 0\nTrainer.segment_length = 64\n"
        "Trainer.tokens_per_step = 256\ncosine.warmup_steps = 1\n"
        + "".join(
            f"BlockRecurrentTransformer.{name}\n"
            for name in ("width = 16", "feed_forward_size = 16", "window = 32", *LAYERS)
        )
    )
    build(folder / "tiny.gin")  # prepares the stores, for which the command would start a process
    workdir = "--workdir=runs/quickstart"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert not command(patch, train, f"--gin_file={folder}/tiny.gin", workdir)
        assert not command(patch, evaluate, workdir, "--record")
    return folder


def run(folder, *arguments):
    return apart.run(sys.executable, *arguments, cwd=folder, **quick_environment())


def test_python_of_the_pages_runs(beside_a_run):
    texts = {name_of(page): "\n".join(blocks(page, "python")) for page in PAGES}
    code = "for name, text in {}.items(): exec(compile(text, name, 'exec'), {{'__name__': name}})"
    run(beside_a_run, "-c", code.format(texts))


def test_the_site_builds_without_warnings(tmp_path):
    pytest.importorskip("material", reason='the site needs pip install -e ".[docs]"')
    run(ROOT, "-m", "mkdocs", "build", "--strict", "-f", ".mkdocs.yml", "-d", tmp_path)
    assert (tmp_path / "tour" / "index.html").exists()
