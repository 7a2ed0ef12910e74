"""Values of a type that a parameter does not declare are refused where they are bound."""

import re

import gin
import pytest
from paths import ROOT
from tiny_run import write_config

from brt import config
from brt.config import ConfigError
from brt.experiment import Experiment
from brt.registration import register_all


@pytest.fixture(autouse=True)
def gin_afterwards():
    yield
    gin.clear_config()


def declared():
    """(name, annotation, default) of every parameter of brt that gin may bind."""
    for selector, entry in gin.config._REGISTRY.items():
        if not (entry.module or "").startswith("brt"):
            continue
        hidden = {"self", *(entry.denylist or ())}
        for name, parameter in config._parameters(entry).items():
            named = parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
            if name not in hidden and named:
                configurable = selector.rsplit(".", 1)[-1]
                yield f"{configurable}.{name}", parameter.annotation, parameter.default


register_all()
DECLARED = sorted(declared(), key=lambda each: each[0])
BOOLEANS = [name for name, annotation, _ in DECLARED if annotation is bool]


def refused(*lines):
    with pytest.raises(ConfigError) as caught:
        config.parse(bindings=lines)
    return str(caught.value)


def test_whatever_has_a_plain_default_declares_its_type():
    without = [
        name
        for name, annotation, default in DECLARED
        if annotation is gin.config.inspect.Parameter.empty
        if isinstance(default, bool | int | float | str | tuple)
    ]
    assert without == []


@pytest.mark.parametrize("name", BOOLEANS)
@pytest.mark.parametrize("value", ["'False'", "'no'", "0", "1", "None", "(False,)"])
def test_nothing_but_true_and_false_is_taken_for_a_boolean(name, value):
    sentence = refused(f"{name} = {value}")
    assert sentence.startswith(f"{name} = {value} must be True or False")
    assert ("without quotes" in sentence) == value.startswith("'")


@pytest.mark.parametrize("name", BOOLEANS)
@pytest.mark.parametrize("value", ["True", "False"])
def test_true_and_false_are_booleans(name, value):
    config.parse(bindings=[f"{name} = {value}"])


def test_the_booleans_that_switched_something_on_are_among_them():
    assert {
        "BlockRecurrentTransformer.feedback",
        "Evaluation.cleared",
        "Trainer.clear_state",
        "Trainer.remat_segments",
        "Trainer.skip_nonfinite",
        "cosine.tail",
    } <= set(BOOLEANS)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("Trainer.steps = '10'", "a whole number, without quotes."),
        ("Trainer.steps = True", "a whole number."),
        ("Trainer.steps = 10.0", "a whole number, without a point."),
        ("Trainer.steps = None", "a whole number."),
        ("Trainer.bptt_depth = 1.5", "a whole number or None, without a point."),
        ("Trainer.bptt_depth = 'None'", "a whole number or None, without quotes."),
        ("adamw.b1 = 'abc'", "a number, without quotes."),
        ("adamw.clip_norm = True", "a number or None."),
        ("Corpus.store = 3", "a string."),
        ("Evaluation.split = {}", "a string."),
        (
            "BlockRecurrentTransformer.recurrent_layers = 9",
            "a tuple with a whole number in each place.",
        ),
        (
            "BlockRecurrentTransformer.recurrent_layers = (1, 2.0)",
            "a tuple with a whole number in each place.",
        ),
        ("Trainer.mesh = (1, 2, 3)", "a tuple of 2: a whole number, a whole number."),
        ("Mixture.weights = ['much']", "a list with a number in each place."),
        ("TransformerXL.tied_projections = 'no'", "True or False or a tuple with True or False"),
        ("FirstTokens.first = 3", "a dict, such as {'train': 1}."),
        ("Trainer.corpus = -1", "a Corpus, which a reference gives: @NAME()."),
        ("Corpus.source = 2.5", "a Source, which a reference gives: @NAME()."),
        ("evaluation/TransformerXL.same_length = 'no'", "True or False, without quotes."),
    ],
)
def test_a_value_of_another_type_is_refused_by_its_name_and_says_what_is_expected(line, expected):
    assert refused(line).startswith(f"{line} must be {expected}")


@pytest.mark.parametrize(
    "line",
    [
        "adamw.b1 = 0",
        "adamw.clip_norm = None",
        "Trainer.bptt_depth = None",
        "Trainer.mesh = [1, 8]",
        "BlockRecurrentTransformer.recurrent_layers = ()",
        "BlockRecurrentTransformer.recurrent_layers = [1, -1]",
        "Mixture.weights = [1, 0.5]",
        "Mixture.corpora = [@a/Corpus(), @b/Corpus()]",
        "TransformerXL.tied_projections = (True, False)",
        "RecallTask.document_length = (250, 320)",
        "Corpus.vocabulary = 'bytes'",
        "Corpus.vocabulary = @ByteVocabulary()",
        "Trainer.corpus = @Mixture()",
    ],
)
def test_values_of_the_declared_type_pass(line):
    config.parse(bindings=[line])


def test_a_macro_counts_as_its_value():
    config.parse(bindings=["ON = True", "SAME = %ON", "Trainer.clear_state = %SAME"])
    sentence = refused("ON = 'False'", "SAME = %ON", "Trainer.clear_state = %SAME")
    assert sentence.startswith("Trainer.clear_state = 'False' (from %SAME) must be True or False")
    sentence = refused("LAYER = 1.0", "BlockRecurrentTransformer.recurrent_layers = (0, %LAYER)")
    assert "recurrent_layers = (0, 1.0) must be a tuple" in sentence


def test_macros_that_stand_for_one_another_are_refused():
    sentence = refused("X = %Y", "Y = %X", "Trainer.steps = %X")
    assert re.match("The macro %[XY] is its own value", sentence)


@pytest.mark.parametrize("file", sorted((ROOT / "configs").glob("*.gin")), ids=lambda f: f.stem)
def test_every_config_is_of_the_declared_types(file):
    config.parse([str(file)])


def test_a_string_does_not_switch_feedback_on(tmp_path):
    path = write_config(tmp_path)
    config.parse([str(path)], ["BlockRecurrentTransformer.feedback = False"])
    Experiment.from_gin()
    with pytest.raises(ConfigError, match="feedback = 'False' must be True or False"):
        config.parse([str(path)], ["BlockRecurrentTransformer.feedback = 'False'"])
