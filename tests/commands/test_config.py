"""Configuration: what gin would let pass, or say badly, ends in one clear sentence."""

import ast
import inspect
import re

import gin
import pytest
from absl import logging
from apart import python
from paths import ROOT
from tiny_run import PLAIN, gin_afterwards, write_config  # noqa: F401

from brt import config
from brt.bindings.read_bindings import differences, read_bindings
from brt.bindings.registry import known_names, modules_by_name
from brt.config import ConfigError
from brt.experiment import Experiment
from brt.models.block_recurrent.cell import RecurrentCell
from brt.models.block_recurrent.model import BlockRecurrentTransformer
from brt.reporting.gin_text import read_gin_file, write_gin
from brt.run.checks import warn_of_warmup


def plain_config(folder, *lines, without=()):
    return write_config(folder, *PLAIN, *lines, without=without)


def built(path, *bindings):
    config.parse([str(path)], bindings)
    return Experiment.from_gin()


def message(call, *arguments, **options):
    with pytest.raises(ConfigError) as caught:
        call(*arguments, **options)
    return str(caught.value)


# Bindings that a full build does not read.


@pytest.mark.parametrize(
    ("line", "name", "nearest"),
    [
        ("cosine.warmup_steps = 3", "cosine.warmup_steps", " rsqrt.warmup_steps."),
        ("SourceTree.path = 'x'", "SourceTree.path", " TextFiles.path."),
        ("other/TextFiles.path = 'x'", "other/TextFiles.path", " TextFiles.path."),
        ("NUM_LAYERS = 9", "NUM_LAYERS", ""),
    ],
)
def test_what_nothing_reads_is_an_error_that_names_it(folder, line, name, nearest):
    sentence = message(built, plain_config(folder), line)
    assert name in sentence and nearest in sentence


def test_every_unread_name_is_listed_in_one_error(folder):
    path = plain_config(folder, "cosine.tail = False", "ExternalMemory.size = 16", "X = 1")
    sentence = message(built, path)
    for name in ("cosine.tail", "ExternalMemory.size", "X"):
        assert f"{name} is bound" in sentence
    assert sentence.count("\n") == 2


LAYERS = "BlockRecurrentTransformer.recurrent_layers"
OFF = f"{LAYERS} = ()"
CELL = (f"{LAYERS} = (0,)", "RecurrentCell.gate = 'lstm'", "S = 3", "RecurrentCell.num_states = %S")


def test_a_cell_that_is_switched_off_leaves_its_bindings_unread(folder, monkeypatch):
    """By a binding; in the `config.gin` of that run; and in the one file that a sweep writes."""
    warned = []
    monkeypatch.setattr(logging, "warning", lambda text, *words: warned.append(text % words))
    path = plain_config(folder, *CELL)
    experiment = built(path)
    assert experiment.model.layers[0].num_states == 3 and not warned
    assert experiment.bindings["RecurrentCell.gate"] == "'lstm'"
    experiment = built(path, OFF)
    again, sweep = folder / "config.gin", folder / "sweep.gin"
    again.write_text(gin.config_str())
    sweep.write_text(write_gin(read_gin_file(path) | {LAYERS: ()}))
    for found in (experiment, built(again), built(sweep)):
        assert not any(layer.num_states for layer in found.model.layers)
        assert not [name for name in found.bindings if name.startswith("RecurrentCell")]
    assert len(warned) == 3 and all(
        "RecurrentCell.gate" in line and LAYERS in line for line in warned
    )


def test_what_is_switched_off_excuses_nothing_else(folder):
    path = plain_config(folder, *CELL)
    for name in ("RecurrentCell.num_states", "S"):
        assert f"{name} is bound" in message(built, path, OFF, f"{name} = 4")
    assert "RecurentCell" in message(built, path, OFF, "RecurentCell.gate = 'lstm'")
    assert "gatte" in message(built, path, OFF, "RecurrentCell.gatte = 'lstm'")
    sentence = message(built, path, OFF, "ExternalMemory.size = 16")
    assert "ExternalMemory.size is bound" in sentence and "RecurrentCell" not in sentence
    lines = path.read_text().splitlines()
    path.write_text("\n".join(line for line in lines if not line.startswith(LAYERS)))
    assert "RecurrentCell.gate is bound" in message(built, path)  # off by default, not by a line


def test_evaluation_bindings_count_as_read_while_training(folder):
    path = plain_config(folder)
    experiment = built(path, "Trainer.eval_every = 0", "Evaluation.max_steps = 3")
    assert experiment.bindings["Evaluation.max_steps"] == "3"


def test_a_binding_that_only_scopes_read_counts_as_read(folder):
    lines = [
        *("Trainer.corpus = @Mixture()", "Mixture.corpora = [@one/Corpus(), @two/Corpus()]"),
        *("Mixture.weights = [1, 1]", "one/Corpus.store = 'one'", "two/Corpus.store = 'two'"),
        *("DATA = 'texts'", "TextFiles.path = %DATA"),
    ]
    path = plain_config(folder, *lines, without=("Corpus.store",))
    experiment = built(path)
    assert experiment.bindings["two/TextFiles.path"] == "%DATA"
    assert [corpus.store.name for corpus in experiment.trainer.corpus.corpora] == ["one", "two"]
    # With a binding for each scope, nothing reads the one for all.
    both = "one/TextFiles.path = 'x'", "two/TextFiles.path = 'y'"
    assert "TextFiles.path" in message(built, path, *both)


def test_nothing_is_left_of_the_configuration_before(folder):
    built(plain_config(folder))
    config.parse(bindings=["Trainer.steps = 3"])
    assert read_bindings() == {}
    with pytest.raises(ConfigError, match="corpus"):
        Experiment.from_gin()


# Names and values that do not exist.


@pytest.mark.parametrize(
    ("line", "wanted", "nearest"),
    [
        ("RecurentCell.gate = 'fixed'", "RecurentCell", "RecurrentCell."),
        ("Trainer.optimizer = @adafactr", "adafactr", "adafactor."),
        ("Trainer.corpus = @Corpu()", "Corpu", "Corpus."),
        ("RecurrentCell.gat = 'fixed'", "RecurrentCell", "RecurrentCell.gate."),
        ("cosine.warmup = 8", "cosine", "cosine.warmup_steps."),
    ],
)
def test_a_misspelt_name_is_answered_with_the_nearest(line, wanted, nearest):
    sentence = message(config.parse, bindings=[line])
    assert line in sentence and wanted in sentence
    assert sentence.endswith(f"The nearest valid name is {nearest}")


def test_a_name_that_is_like_none_is_answered_with_all():
    sentence = message(config.parse, bindings=["RecurrentCell.config = 'skip'"])
    assert "RecurrentCell" in sentence and "arrangement" in sentence


def test_a_misspelt_class_of_a_user_is_answered_with_the_nearest():
    gin.external_configurable(type("Retriever", (), {}), "OwnRetriever", module="own_retriever")
    sentence = message(config.parse, bindings=["OwnRetreiver.depth = 2"])
    assert sentence.endswith("The nearest valid name is OwnRetriever.")


def test_known_names_are_the_arguments_gin_may_bind():
    names = known_names()
    for configurable, hidden in (
        (BlockRecurrentTransformer, {"rngs", "cell"}),
        (RecurrentCell, {"rngs"}),
    ):
        own = set(inspect.signature(configurable.__init__).parameters) - {"self"}
        found = set(names[configurable.__name__])
        assert found <= own - hidden and "args" not in found
    assert "window" in names["BlockRecurrentTransformer"] and "gate" in names["RecurrentCell"]
    assert "width" not in names["RecurrentCell"]


def test_every_configurable_can_be_named_in_a_config():
    names = sorted(known_names())
    assert len(names) > 50
    config.parse(bindings=[f"NAMED_{number} = @{name}" for number, name in enumerate(names)])


def test_modules_can_be_imported_after_a_config_was_parsed():
    code = """
from brt import config
from brt.bindings.registry import known_names
config.parse(["configs/quickstart.gin"])
import brt.pretrained.encoders.bert
known_names()
"""
    python(code)


def decorated(text):
    """Yields the names of the configurables of a module, however their decorators are written."""
    for node in ast.parse(text).body if "configurable" in text else ():
        decorators = map(ast.unparse, getattr(node, "decorator_list", ()))
        if any("configurable" in decorator for decorator in decorators):
            yield node.name


def test_the_index_of_the_sources_is_what_gin_knows():
    texts = (path.read_text(encoding="utf-8") for path in (ROOT / "brt").rglob("*.py"))
    names = {name for text in texts for name in decorated(text)}
    assert modules_by_name().keys() == known_names().keys() == names


def test_parsing_imports_only_what_the_config_names():
    code = """
import sys
from brt import config, experiment, train
config.parse(["configs/quickstart.gin"])
experiment.Experiment.from_gin()
print(*(name for name in sys.modules if name.startswith("brt.")))
"""
    loaded = set(python(code).split())
    assert "brt.models.block_recurrent.cell" in loaded and len(loaded) < 180
    for prefix in (
        "studies",
        "reporting",
        "benchmarks",
        "pretrained.decoders",
        "models.transformer",
    ):
        assert not [name for name in loaded if name.startswith(f"brt.{prefix}")]


def test_private_parts_of_gin_are_used_in_one_small_file():
    private = re.compile(r"\bconfig\._[A-Za-z]|from gin\.config import _")
    files = {path: path.read_text() for path in (ROOT / "brt").rglob("*.py")}
    (path,) = (path for path, text in files.items() if private.search(text))
    assert path.name == "gin_private.py" and files[path].count("\n") <= 60


@pytest.mark.parametrize(
    ("line", "quoted"),
    [
        ("RecurrentCell.gate = lstm", '"lstm"'),
        ("TextFiles.path = books/{split}", '"books/{split}"'),
    ],
)
def test_an_unquoted_string_is_answered_with_its_quoted_form(folder, line, quoted):
    sentence = message(config.parse, bindings=[line])
    name = line.split(" = ")[0]
    assert f"--gin.{name}='{quoted}'" in sentence and line in sentence
    path = plain_config(folder, line)
    sentence = message(config.parse, [str(path)])
    assert f"{name} = {quoted}" in sentence and str(path) in sentence


def test_an_unmarked_reference_is_answered_with_its_form_too():
    for line, name in (
        ("Trainer.optimizer = adamw", "@adamw"),
        ("Trainer.clear_state = true", "Write True"),
        ("Trainer.corpus = Mixture", "@Mixture()"),
    ):
        assert name in message(config.parse, bindings=[line])
    assert "@" not in message(config.parse, bindings=["RecurrentCell.gate = lstm"])


@pytest.mark.parametrize(
    "without",
    ["Trainer.steps", "Trainer.corpus", "BlockRecurrentTransformer.window", "TextFiles.path"],
)
def test_a_required_value_that_is_not_bound_is_named(folder, without):
    path = plain_config(folder)
    lines = [line for line in path.read_text().split("\n") if not line.startswith(without)]
    path.write_text("\n".join(lines))
    sentence = message(built, path)
    assert without in sentence
    assert "--gin.NAME=VALUE" in sentence


def test_a_required_evaluation_value_is_asked_for_first(folder):
    path = plain_config(folder, "Evaluation.score = @RecallScore()", "RecallScore.far = 3")
    assert "segment_length" in message(built, path)


def test_a_required_value_of_a_vocabulary_is_named(folder):
    path = plain_config(folder, "Corpus.vocabulary = @CharacterVocabulary()")
    size = ["BlockRecurrentTransformer.vocabulary_size = %size", "size = @corpus_vocabulary_size()"]
    config.parse([str(path)], size)
    config.evaluate_macros()
    assert "CharacterVocabulary.file" in message(Experiment.from_gin)


def test_a_macro_without_a_value_is_named():
    sentence = message(config.parse, bindings=["BlockRecurrentTransformer.width = %WIDTH"])
    assert "WIDTH" in sentence


# Files.


def test_a_missing_file_is_named(folder):
    assert "nowhere.gin: the file does not exist" in message(config.parse, ["nowhere.gin"])
    path = plain_config(folder)
    path.write_text('include "configs/recipes/nowhere.gin"\n' + path.read_text())
    sentence = message(config.parse, [str(path)])
    assert str(path) in sentence and "configs/recipes/nowhere.gin" in sentence


def test_an_open_bracket_is_suspected(folder):
    line = "BlockRecurrentTransformer.recurrent_layers = (1,"
    assert "bracket" in message(config.parse, bindings=[line])
    path = plain_config(folder, line)
    sentence = message(config.parse, [str(path)])
    assert "bracket" in sentence and str(path) in sentence


def test_includes_are_found_from_anywhere(folder, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "extra").mkdir(exist_ok=True)
    (folder / "extra" / "part.gin").write_text("Trainer.seed = 7\n")
    path = folder / "whole.gin"
    path.write_text('include "configs/recipes/small_block_recurrent.gin"\ninclude "part.gin"\n')
    config.parse([str(path)], search_paths=[str(folder / "extra")])
    assert gin.query_parameter("Trainer.seed") == 7
    assert gin.query_parameter("BlockRecurrentTransformer.activation_dtype") == "float32"


def test_later_files_and_bindings_override_earlier_ones(folder):
    first, second = folder / "first.gin", folder / "second.gin"
    first.write_text("Trainer.seed = 1\nTrainer.steps = 1\nTrainer.log_every = 1\n")
    second.write_text("Trainer.seed = 2\nTrainer.steps = 2\n")
    config.parse([str(first), str(second)], ["Trainer.seed = 3", "Trainer.seed = 4"])
    found = [gin.query_parameter(f"Trainer.{name}") for name in ("seed", "steps", "log_every")]
    assert found == [4, 2, 1]


# Flags.


@pytest.mark.parametrize(
    ("flag", "expected"),
    [
        ("--gin.Trainer.steps=5", "--gin_bindings=Trainer.steps = 5"),
        ("--gin.a/b.c=@f()", "--gin_bindings=a/b.c = @f()"),
        ("--gin.TextFiles.path='a=b'", "--gin_bindings=TextFiles.path = 'a=b'"),
        ("--gin.X='a == b'", "--gin_bindings=X = 'a == b'"),
        ("--gin_bindings=Trainer.steps=5", "--gin_bindings=Trainer.steps=5"),
        ("--gin_file=--gin.x=1", "--gin_file=--gin.x=1"),
        ("--workdir=runs/a=b", "--workdir=runs/a=b"),
        ("positional", "positional"),
    ],
)
def test_gin_flags_become_bindings_and_other_flags_stay(flag, expected):
    assert config.split_flags(["brt.train", flag, "last"]) == ["brt.train", expected, "last"]


# Comparing two configurations.


def test_a_warm_up_as_long_as_the_run_is_warned_of(folder, monkeypatch):
    logged = []
    monkeypatch.setattr(
        "brt.run.checks.logging.warning", lambda form, *values: logged.append(form % values)
    )
    path = plain_config(folder)
    for bindings in (["rsqrt.warmup_steps = 5"], ["rsqrt.warmup_steps = None"]):
        warn_of_warmup(built(path, *bindings))
    assert logged == []
    warn_of_warmup(built(path, "LONG = 6.0", "rsqrt.warmup_steps = %LONG"))
    warn_of_warmup(built(plain_config(folder, without=("rsqrt.warmup_steps",))))
    linear = "Trainer.schedule = @linear", "linear.warmup_steps = 6"  # 0 in all steps
    warn_of_warmup(built(plain_config(folder, without=("rsqrt",)), *linear))
    schedules = [re.search(r"warm-up of (\w+)", warning)[1] for warning in logged]
    assert schedules == ["rsqrt", "rsqrt", "linear"]


def test_differences_name_each_binding_once_in_order():
    old = {"b.x": "1", "a.x": "'fixed'", "c.x": "None", "same.x": "3"}
    new = {"b.x": "2", "a.x": "'fixed'", "d.x": "True", "same.x": "3"}
    assert differences(old, new) == [
        "b.x: 1 -> 2",
        "c.x: None -> (not bound)",
        "d.x: (not bound) -> True",
    ]
    assert differences(old, dict(reversed(old.items()))) == []


def test_a_new_parameter_at_its_default_is_no_difference():
    assert differences({}, {"RecurrentCell.state_ids": "True"}) == []
    lines = ["RecurrentCell.state_ids: (not bound) -> False"]
    assert differences({}, {"RecurrentCell.state_ids": "False"}) == lines
