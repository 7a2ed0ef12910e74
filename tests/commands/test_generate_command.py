"""`brt.generate`: text on standard output, the rest on standard error, nothing lost."""

import re
import shutil
from pathlib import Path

import pytest
from absl import flags
from tiny_run import build, command, write_config

from brt import benchmark, generate
from brt.data.stores.layout import vocabulary_entry
from brt.generation import generator as generation
from brt.generation.generator import Generator
from brt.generation.sampling import Sampling
from brt.model_folder import load_run
from brt.training.checkpoints.checkpoint import Checkpoints

PROMPT = "the tea then"


@pytest.fixture(scope="module")
def run(folder):
    """What generation needs of a run folder: a config and a checkpoint."""
    tiny = build(write_config(folder))
    (folder / "run").mkdir()
    shutil.copy(tiny.path, folder / "run/config.gin")
    checkpoints = Checkpoints(str(folder / "run/checkpoints"))
    record = {"vocabulary": vocabulary_entry(tiny.experiment.trainer.corpus.vocabulary)}
    checkpoints.save(tiny.experiment.init_state(), record)
    checkpoints.close()
    return folder / "run"


@pytest.fixture
def generated(monkeypatch, capfd, run):
    """Runs the command: standard output, standard error."""

    def call(*arguments, workdir=run, status=0):
        found = command(monkeypatch, generate, f"--workdir={workdir}", *arguments)
        out, err = capfd.readouterr()
        assert (found or 0) == status and "Traceback" not in err, err
        return out, err

    yield call
    for name in flags.FLAGS:
        flags.FLAGS[name].unparse()


def test_the_command_writes_what_the_python_interface_writes(generated, run):
    options = ("--max_tokens=20", "--temperature=0.8", "--top_k=9", "--seed=3")
    out, err = generated(f"--prompt={PROMPT}", *options)
    experiment, params, _ = load_run(str(run))
    generator = Generator(experiment.bind(params), experiment.trainer.corpus.vocabulary, 16)
    writing = generator.write(generator.read(PROMPT), 20, Sampling(0.8, 9), seed=3).run()
    assert out == writing.texts[0] + "\n"
    assert "at step 0" in err and "20 tokens in" in err


def test_a_terminal_shows_the_prompt_before_the_text(generated, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    out, _ = generated(f"--prompt={PROMPT}", "--max_tokens=1")
    assert out.startswith(f"\033[2m{PROMPT}\033[22m")


def test_a_memory_file_goes_on_where_the_document_stood(generated, tmp_path):
    (tmp_path / "book.txt").write_text(PROMPT * 9)
    book, memory = f"--prompt_file={tmp_path}/book.txt", f"{tmp_path}/book.memory"
    whole, _ = generated(book, "--temperature=0", "--max_tokens=24")
    out, err = generated(book, "--max_tokens=0", f"--save_memory={memory}")
    assert not out
    size = re.search(r"has read 108 tokens and takes ([\d,]+) bytes", err)[1]
    go_on = ("--temperature=0", "--max_tokens=12", f"--load_memory={memory}")
    first, err = generated(*go_on, f"--save_memory={memory}")
    assert "has read 108 tokens" in err
    assert f"has read 120 tokens and takes {size} bytes" in err
    second, _ = generated(*go_on)
    assert first[:-1] + second == whole
    forks, _ = generated(f"--load_memory={memory}", "--samples=2", "--max_tokens=9")
    assert re.fullmatch(r"--- 0\n.*\n--- 1\n.*\n", forks, re.DOTALL)
    (tmp_path / "next.txt").write_text("eat")
    scores, _ = generated(f"--load_memory={memory}", f"--score={tmp_path}/next.txt")
    assert re.fullmatch(r"tokens 3  bits per token (\d+\.\d+)  bits per byte \1\n", scores)


def test_a_long_file_is_read_part_by_part_as_it_is_read_whole(generated, tmp_path, monkeypatch):
    (tmp_path / "book.txt").write_text(PROMPT * 21)
    generated(f"--prompt={PROMPT[:5]}", "--max_tokens=0", f"--save_memory={tmp_path}/begun")
    found = []
    for long in (False, True):
        if long:
            monkeypatch.setattr(generate, "LONG", 10)
            monkeypatch.setattr(generation, "READ_TOGETHER", 40)
            monkeypatch.setattr(generation, "ENCODED_TOGETHER", 7)
            monkeypatch.setattr(Generator, "encode", encode_little)
        for start in ([], [f"--load_memory={tmp_path}/begun"]):
            saved = f"{tmp_path}/{long}{len(start)}"
            flags = [f"--prompt_file={tmp_path}/book.txt", f"--save_memory={saved}"]
            out, err = generated(*start, *flags, "--temperature=0", "--max_tokens=20")
            assert f"has read {252 + 5 * len(start) + 20:,} tokens" in err
            found.append((out, Path(saved).read_bytes()))
    assert found[:2] == found[2:] and found[0] != found[1]


def encode_little(self, text, title="the prompt", encode=Generator.encode):
    assert len(text) <= 40 + 8
    return encode(self, text, title)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--temperature=-1"], "temperature = -1"),
        (["--top_p=0"], "top_p = 0"),
        (["--top_k=257"], "vocabulary's 256 ids"),
        (["--samples=0"], "--samples = 0"),
        (["--samples=2", "--save_memory=x"], "--save_memory keeps one document, and 2"),
        (["--save_memory=/nowhere/x"], "there is no folder /nowhere"),
        (["--load_memory=nothing"], "There is no memory file nothing"),
        (["--prompt_file=nothing.txt"], "Error: nothing.txt: No such file"),
        (["--gin_file=x.gin"], "--gin_file is not read"),
        (["--gin.Corpus.vocabulary='characters:few'"], "trained with the tokenizer bytes"),
        (["--load_memory=torn"], "torn is not a memory file, or only a part of one"),
        (["--score=empty"], "empty has no token to score"),
        (["--save_text=/nowhere/x", "--temperature=0"], "/nowhere/x: No such file"),
    ],
)
def test_bad_arguments_end_in_a_sentence(generated, arguments, named, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "few").write_text("U+0061 2\n")
    (tmp_path / "torn").write_bytes(b"\x10")
    (tmp_path / "empty").touch()
    out, err = generated(*arguments, status=1)
    assert named in err and not out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "few", "torn"]


def test_the_benchmark_compares_reading_writing_and_recomputing(monkeypatch, capfd, run):
    status = command(
        monkeypatch, benchmark, f"--generate={run}/config.gin", "--positions=10,70", "--written=20"
    )
    out, _ = capfd.readouterr()
    assert not status
    assert re.search(r"programs before and after\s+(\d), \1\n", out)
    sizes = re.findall(r"bytes of caches\s+([\d,]+) and ([\d,]+)", out)
    assert len(set(sizes[0])) == 1
