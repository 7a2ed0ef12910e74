"""Spoilt settings: bindings of every architecture's configs, and gin files."""

import collections
import difflib
import time

import gin
import numpy as np
import pytest
from fuzzing import Tally, spoil_file
from gin_settings import read_gin_files
from paths import CONFIGS
from test_fuzz_files import both, draws

from brt import config
from brt.bindings import gin_files
from brt.bindings.gin_files import ReferenceText
from brt.bindings.read_bindings import differences, flatten
from brt.experiment import Experiment
from brt.reporting.gin_text import read_gin, read_gin_file, resolved

BASES = (
    ("quickstart.gin",),
    ("systems/rec_fixed_dual.gin", "corpora/text.gin"),
    ("systems/feedback_fixed_skip.gin", "recipes/github.gin"),
    ("systems/memorizing_64k.gin", "corpora/text.gin"),
    ("systems/slide_13l.gin", "recipes/arxiv.gin"),
    ("systems/xl_512.gin", "corpora/text.gin"),
    ("small/rec_memorizing.gin", "corpora/text.gin"),
    ("small/rmt_rec.gin", "corpora/text.gin"),
    ("small/compressive.gin", "corpora/text.gin"),
    ("small/lstm.gin", "corpora/text.gin"),
    ("small/qrnn.gin", "corpora/text.gin"),
    ("transformer_xl/wt103_base.gin", "recipes/wikitext103.gin"),
    ("transformer_xl/characters_12l.gin", "corpora/enwik8.gin"),
    ("rmt/rmt_wt103_150.gin", "recipes/wikitext103.gin"),
    ("rmt/rmt_txl_wt103_150.gin", "recipes/wikitext103.gin"),
    ("task_models/minutes_rmt.gin", "tasks/copy.gin"),
    ("task_models/minutes_baseline.gin", "tasks/quadratic.gin"),
    ("pretrained/gpt2_pooled.gin", "corpora/text.gin"),
    ("readers/bert.gin", "labelled/hyperpartisan.gin"),
)
"""One of each architecture and kind of corpus."""

VALUES = {
    "type": (
        *("True", "False", "'False'", "None", "'abc'", "''", "[]", "{}", "1j", "(1, 2)", "1.5"),
        *("@Corpus()", "@LSTM", "@Trainer()", "@adamw", "{'train': 'x'}", "[1, 'a']", "b'x'"),
    ),
    "range": ("0", "-1", "-0.5", str(10**12), str(2**70), "1e400", "-1e400", "1e-60", "3", "0.0"),
}


def bases():
    """Files and settings, as written, of the bases that are there."""
    for names in BASES:
        paths = [str(CONFIGS / name) for name in names]
        yield paths, read_gin_files(paths)


def mean_something(value, name, current):
    """Whether some run can mean a bound value, judged by the value the config has, not by brt.

    None: it cannot be said.
    """
    if isinstance(current, ReferenceText) or current is None or value is None:
        return None
    if isinstance(value, ReferenceText):
        return False
    if isinstance(current, bool):
        return isinstance(value, bool)
    if isinstance(current, int | float):
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None if isinstance(value, tuple) else False
        too_much = isinstance(value, int) and isinstance(current, int) and value >= 2**40
        if not np.isfinite(np.float32(value)) or value < 0 or too_much:
            return (
                False if not name.endswith(("layer_index", "buckets", "longest_distance")) else None
            )
        return None
    if isinstance(current, str):
        return None if isinstance(value, str) else False
    return False if isinstance(value, str | bytes | complex) else None


def mutated(rng, settings):
    """Returns a kind, lines that change one or two bindings, texts of which an error must have one,
    and whether the values may be valid (None: unknown)."""
    names = [
        name for name in settings if "." in name or not isinstance(settings[name], ReferenceText)
    ]
    kind = ("type", "range", "type", "range", "name", "contradiction")[int(rng.integers(6))]
    name = names[int(rng.integers(len(names)))]
    current = settings[name]
    while (
        isinstance(current, ReferenceText) and current.startswith("%") and current[1:] in settings
    ):
        current = settings[current[1:]]
    if kind in VALUES:
        text = VALUES[kind][int(rng.integers(len(VALUES[kind])))]
        value = ReferenceText(text) if text.startswith("@") else eval(text)
        means = mean_something(value, name, current)
        culprits = [name.rpartition(".")[2], text, text.strip("@()") or text]
        return kind, [f"{name} = {text}"], culprits, means
    if kind == "name":
        spot = int(rng.integers(1, len(name)))
        letter = "aeioxyz_"[int(rng.integers(8))]
        wrong = name[:spot] + letter + name[spot:]
        culprits = [wrong, *wrong.split("."), letter]
        return kind, [f"{wrong} = {settings[name]!r}"], culprits, False
    lines, culprits = [], []
    for other in sorted({name, names[int(rng.integers(len(names)))]}):
        value = settings[other]
        if isinstance(value, int) and not isinstance(value, bool):
            value = int(max(1, value * (0.5, 2, 3)[int(rng.integers(3))] + rng.integers(-1, 2)))
        elif isinstance(value, float):
            value *= float(rng.choice([0.1, 10]))
        elif isinstance(value, bool):
            value = not value
        lines.append(f"{other} = {value!r}")
        culprits += other.split(".")
    return kind, lines, culprits, None


RELATED = (
    *("vocabulary_size", "segment_length", "tokens_per_step", "width", "head", "layer", "window"),
    *("Trainer", "Corpus", "Mixture", "Evaluation", "memory", "folder", "path", "cutoffs", "size"),
)
"""Settings that the error of a contradiction may name, instead of the changed setting."""


@both
def test_a_spoilt_binding_is_refused_or_is_what_runs(scale):
    tally, found = Tally("bindings"), list(bases())
    assert len(found) == len(BASES)

    def call():
        config.parse(paths, lines)
        return Experiment.from_gin()

    def right(experiment):
        if means is False:
            return False
        for line in lines:
            name, _, value = line.partition(" = ")
            written = "." in name and not value.startswith(("@", "%"))
            if written and experiment.bindings.get(name) != repr(eval(value)):
                return False
        return True

    for paths, _ in found if scale else found[:1]:
        lines, means = [], None
        tally.judge(f"{paths}, as it is", call, right, [])
    for number, rng in draws(11, (6, 800)[scale]):
        paths, settings = found[number % len(found)]
        kind, lines, culprits, means = mutated(rng, settings)
        # The error may name the setting that reads the changed value.
        culprits = [*culprits, *(RELATED if kind in ("contradiction", "range") else ())]
        case = f"{number}: {'+'.join(p[len(str(CONFIGS)) + 1 :] for p in paths)}: {lines}"
        tally.judge(case, call, right, culprits)
    gin.clear_config()
    tally.check()


GIN = """# A comment, café
include "configs/small/rec_fixed_skip.gin"
include "configs/corpora/text.gin"
TextFiles.path = "books/{split}"
Trainer.steps = 10
BlockRecurrentTransformer.recurrent_layers = (1, -1)
DROP = 0.1
BlockRecurrentTransformer.dropout = %DROP
"""


@both
def test_a_spoilt_gin_file_is_refused_or_bound(scale, tmp_path):
    tally, path, line = Tally("gin files"), tmp_path / "own.gin", "Trainer.steps = 10"

    def call():
        config.parse([str(path)])
        return gin.config_str()

    def right(bound):
        text = path.read_bytes().decode("utf-8-sig")
        if line not in bound:
            return line not in text.splitlines() and "import" not in bound
        return difflib.SequenceMatcher(None, text, GIN).ratio() > 0.2

    path.write_text(GIN)
    tally.judge("as it is", call, right, [path])
    for number, rng in draws(12, (25, 200)[scale]):
        if path.is_dir():
            path.rmdir()
        path.unlink(missing_ok=True)
        path.write_text(GIN)
        what = spoil_file(rng, path)
        tally.judge(f"{number}: {what}", call, right, [path])
    gin.clear_config()
    tally.check()


# Gin texts, by what gin does with them.

MODULES = ("one", "two", "three.four")
STATEMENTS = (
    *("import one", "import three.four", "import two as brt", "from three import four"),
    *("from three import four as five", "from __gin__ import dynamic_registration"),
    *('include "inner.gin"', "include 'inner.gin' # import two", "Trainer.seed = 3", "LENGTH = 4"),
    *("Trainer.seed = %LENGTH", "Trainer:\n    seed = 5", "TextFiles.path = 'a' 'b'", "# é", ""),
)
HALVES = (
    *('TextFiles.path = "a', "TextFiles.path = '''a", "Trainer.seed = (1,", "Trainer.seed = \\"),
    *('"""', "'''", "[", "]", ")", "}", "    ", "import", "from three", "TextFiles.path = r'\\"),
    *("\uff49mport one", "import \uff4fne", "Trainer.seed = (1, # )"),
)
BETWEEN = (
    *("\r", "\n\r", "\r\r\n", "\r\n", "\x0b", "\x0c", "\x1c", "\x1e", "\x85", "\u2028", "\u2029"),
    *("\ufeff", "\0", "\x1a", "\x08", "\x7f", "\u202e", "\u200b", "\xa0", "\xad", "# c\r"),
    *("# c\x0c", "# c\u2028", "\\\n", "\\\r", "\\\r\n", ";", " ", "\t", "#", ",", "\n    "),
)
BEGINNINGS = ("# c", "\ufeff", "\ufeff\ufeff", *BETWEEN)


def pick(rng, pieces):
    return pieces[int(rng.integers(len(pieces)))]


def gin_bytes(rng):
    """A text of pieces that import, include, bind, and hide one another from some readers."""
    text = pick(rng, BEGINNINGS) if rng.random() < 0.2 else ""
    odd = 0.3 * rng.random() * (rng.random() < 0.7)
    for _ in range(int(rng.integers(1, 7))):
        text += pick(rng, HALVES if rng.random() < odd / 2 else STATEMENTS)
        text += pick(rng, BETWEEN) if rng.random() < odd else "\n"
    return text.encode()


def gin_does(call):
    """The modules that gin is made to import, and whether it is refused; none is imported."""
    found = []
    with pytest.MonkeyPatch.context() as patch:
        note = lambda context, statement: found.append(statement.module)  # noqa: E731
        patch.setattr(gin.config.ParseContext, "process_import", note)
        try:
            call()
        except config.ConfigError:
            return found, True
    return found, False


@both
def test_what_is_checked_of_a_gin_text_is_what_gin_does(scale, tmp_path, monkeypatch):
    """Compares the checked imports, and the bindings read as data, with those of gin's parser."""
    monkeypatch.chdir(tmp_path)
    seen, different, tally = [], [], collections.Counter()
    check = gin_files.check_module

    def noted(module, *given):
        seen.append(module)
        check(module, *given)

    monkeypatch.setattr(gin_files, "check_module", noted)
    for number, rng in draws(13, (250, 200_000)[scale]):
        content = gin_bytes(rng)
        (tmp_path / "own.gin").write_bytes(content)
        if number % 4 == 0:
            (tmp_path / "inner.gin").write_bytes(gin_bytes(rng))
        given = {"gin_files": ["own.gin"]}
        if number % 5 == 0:
            given = {"bindings": [content.decode()]}
        wrong, _ = gin_does(lambda given=given: config.parse(**given))
        seen.clear()
        done, refused = gin_does(lambda given=given: config.parse(**given, allow_imports=MODULES))
        wrong += (collections.Counter(done) - collections.Counter(seen)).elements()
        if not refused:
            wrong += (collections.Counter(seen) - collections.Counter(done)).elements()
            settings = (
                read_gin_file("own.gin") if "gin_files" in given else read_gin(content.decode())
            )
            read = {name: repr(value) for name, value in settings.items()}
            wrong += differences(read, flatten(gin.config._CONFIG))
        tally.update(texts=1, refused=refused, import_something=bool(done), different=bool(wrong))
        if wrong:
            different.append(f"{number}: {given} {content!r}: {wrong}")
    gin.clear_config()
    print(f"gin texts: {dict(tally)}")
    assert not different, "\n".join(different[:20])
    assert min(tally["import_something"], tally["texts"] - tally["refused"]) > number / 50


# Small texts with huge values.


TWICE = "".join(f"a{n} = (%a{n - 1}, %a{n - 1})\n" for n in range(1, 40))
BOMBS = {
    "macros": f"a0 = 1\n{TWICE}TextFiles.path = %a39",
    "references": "x = @a39/SentencePieceTraining()\n"
    + "".join(
        f"a{n}/SentencePieceTraining.options = {{'p': @a{n - 1}/SentencePieceTraining(), "
        f"'q': @a{n - 1}/SentencePieceTraining()}}\n"
        for n in range(1, 40)
    ),
    "values read often": f"many = {(1,) * 9000}\n"
    + "".join(f"s{n}/SentencePieceTraining.options = {{'p': %many}}\n" for n in range(40)),
    "a chain of macros": "a0 = 1\n" + "".join(f"a{n + 1} = %a{n}\n" for n in range(1500)),
    "a circle of macros": "a = (%b, %b)\nb = (%a, %a)\nTextFiles.path = %a",
    "brackets": "TextFiles.path = " + "[" * 5000 + "]" * 5000,
    "fewer brackets": "TextFiles.path = " + "[" * 150 + "]" * 150,
    "a file that includes itself": "include '0.gin'\n",
    "a file that includes itself twice": "include '0.gin'\n" * 2,
    "many names": "".join(f"a{n} = 1\n" for n in range(90_000)),
}
HARMLESS_TO_READ = ("references", "a chain of macros", "fewer brackets")


@pytest.mark.parametrize("kind", BOMBS)
def test_a_small_text_that_stands_for_much_is_refused_at_once(kind, tmp_path, monkeypatch):
    """Checks commands, which bind the text, and reports, which read it as data."""
    tally = Tally(f"bombs: {kind}")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "0.gin").write_text(BOMBS[kind])
    begun = time.process_time()
    culprits = [".gin", "TextFiles.path", "%a", "%b", "bind fewer"]
    tally.judge("bound", lambda: config.parse(["0.gin"]), lambda _: False, culprits)
    harmless = kind in HARMLESS_TO_READ
    read = lambda: resolved(read_gin_file("0.gin"))  # noqa: E731
    tally.judge("read", read, lambda _: harmless, [*culprits, "brackets"])
    gin.clear_config()
    tally.check()
    assert time.process_time() - begun < 10
