"""Values of a type that a parameter does not declare are refused where they are bound."""

import inspect
import re
import typing

import gin
import pytest
from paths import ROOT
from tiny_run import write_config

from brt import config
from brt.bindings.bound_values import bound_values, parameters_of
from brt.bindings.declared_types import PLAIN, allows
from brt.bindings.registration import register_all
from brt.checks import OneOf
from brt.config import ConfigError
from brt.experiment import Experiment
from brt.reporting.gin_text import read_gin, resolved


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
        for name, parameter in parameters_of(entry).items():
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


def test_nothing_but_true_and_false_is_taken_for_a_boolean():
    for value in ("'False'", "'no'", "0", "1", "None", "(False,)"):
        assert refused(f"Trainer.clear_state = {value}").startswith(
            f"Trainer.clear_state = {value}"
        )
    for name in BOOLEANS:
        assert refused(f"{name} = 'False'").startswith(f"{name} = 'False'")


def test_true_and_false_are_booleans():
    for value in (True, False):
        config.parse(bindings=[f"{name} = {value}" for name in BOOLEANS])


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
        ("RecurrentCell.gate_biases = 1.0", "one of 'small', 'zero', 'one'."),
        ("Trainer.mesh = 1", "a tuple of 2: a whole number, a whole number."),
        (
            "BlockRecurrentTransformer.recurrent_layers = 9.0",
            "a tuple with a whole number in each place, without a point.",
        ),
        (
            "BlockRecurrentTransformer.recurrent_layers = (1, 2.0)",
            "a tuple with a whole number in each place.",
        ),
        ("Trainer.mesh = (1, 2, 3)", "a tuple of 2: a whole number, a whole number."),
        ("Mixture.weights = ['much']", "a list with a number in each place."),
        ("TransformerXL.tied_projections = 'no'", "True or False or a tuple with True or False"),
        ("FirstTokens.first = 3", "a dict with a whole number for each name."),
        ("Trainer.corpus = -1", "a Corpus, which a reference gives: @NAME()"),
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


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["BlockRecurrentTransformer.recurrent_layers = 9"], (9,)),
        (["LAYER = -1", "BlockRecurrentTransformer.memorizing_layers = %LAYER"], (-1,)),
        (["WordCounting.splits = 'all'"], ("all",)),
        (["TransformerXL.cutoffs = 5"], (5,)),
        (["evaluation/TransformerXL.cutoffs = 5"], (5,)),
        (["TransformerXL.tied_projections = False"], False),
        (["BlockRecurrentTransformer.recurrent_layers = [9]"], [9]),
    ],
)
def test_a_value_alone_stands_for_a_tuple_of_it(lines, expected):
    """In what is built, in `config.gin`, and in an entry of a sweep."""
    config.parse(bindings=lines)
    name = lines[-1].partition(" = ")[0]
    again = gin.config_str()
    for _ in range(2):
        (found,) = [bound.value for bound in bound_values() if bound.name == name]
        assert found == expected and type(found) is type(expected)
        config.parse(bindings=[again])
    settings = resolved(read_gin("\n".join(lines)))
    assert config.as_declared(settings) == {name: expected}


def test_a_setting_that_is_one_of_several_strings_names_them():
    choices = {
        name: one
        for name, declared in config.declarations().items()
        for one in typing.get_args(declared)
        if isinstance(one, OneOf)
    }
    assert {"RecurrentCell.gate", "TransformerXL.norm", "Trainer.stream"} <= choices.keys()
    for name, one in choices.items():
        for wrong in ("1.0", "'nonsense'"):
            sentence = refused(f"{name} = {wrong}")
            assert all(repr(choice) in sentence for choice in one.choices), name
        for choice in one.choices:
            config.parse(bindings=[f"{name} = {choice!r}"])


def test_a_default_is_of_the_declared_type_and_range():
    absent = (inspect.Parameter.empty, gin.REQUIRED)
    wrong = [
        name
        for name, annotation, default in DECLARED
        if isinstance(default, PLAIN) and default not in absent and not allows(annotation, default)
    ]
    assert wrong == []


def bare_numbers(annotation):
    """Numbers of an annotation that have no range."""
    if typing.get_origin(annotation) is typing.Annotated:
        return []
    inner = [one for each in typing.get_args(annotation) for one in bare_numbers(each)]
    return [annotation] if annotation in (int, float) else inner


def test_whatever_takes_a_number_declares_its_range():
    without = [name for name, annotation, _ in DECLARED if bare_numbers(annotation)]
    assert without == ["Llama.rotary_scaling"]  # four numbers, which `check_scaling` knows
    assert bare_numbers(tuple[int, ...] | None) == [int]


@pytest.mark.parametrize(
    "line",
    [
        *("adamw.clip_norm = -0.5", "adamw.clip_norm = 0", "adamw.clip_value = 0"),
        *("adamw.clip_norm = -1e400", "adamw.weight_decay = -5.0", "adamw.weight_decay = 1e400"),
        *("adamw.b1 = 5", "adamw.b1 = 1.0", "adamw.b1 = -1.0", "adamw.b2 = 3", "adamw.b2 = -1"),
        *("adamw.eps = -1.0", "adamw.eps = 1e400", "adamw.eps = 0", "adamw.eps = 1e-60"),
        *("adafactor.momentum = 5", "adafactor.clip_update = 0", "adafactor.min_factored = -1"),
        *("cosine.maximum = -0.5", "cosine.maximum = 1e400", "cosine.minimum = -0.5"),
        *("cosine.warmup_steps = -5", "cosine.warmup_steps = 2.5", "cosine.warmup_steps = 1j"),
        *("Trainer.steps = 0", "Trainer.eval_every = -1", "Trainer.mesh = (-2, 1)"),
        *("Trainer.seed = -1", f"Trainer.seed = {2**70}", "Trainer.bptt_depth = -1"),
        *("CheckpointPolicy.keep_every = -1", "CheckpointPolicy.keep_every = 0"),
        *("Evaluation.max_steps = -1", "Evaluation.max_steps = 0", "Evaluation.stride = 0"),
        "BlockRecurrentTransformer.head_size = 1000000000000",
        "BlockRecurrentTransformer.feed_forward_size = 0",
        *("BlockRecurrentTransformer.dropout = 1.0", "TransformerXL.projection_std = -0.5"),
        *("TransformerXL.num_layers = -1", "RelativeBias.num_buckets = 0"),
        *("RelativeBias.num_buckets = 1000000000000", "ExternalMemory.size = 1000000000000"),
        *("LSTM.vocabulary_size = 1000000000000", "RecallScore.segment_length = -1"),
        *("RecallTask.num_fillers = 1000000000000", "RecallTask.document_length = (0, 3)"),
        *("Mixture.weights = [1, 0]", "Mixture.weights = [1e400, 1]", "Corpus.store = ''"),
        *("TextFiles.path = '  '", "FirstDocuments.first = {'train': 0}"),
        *("a/adamw.b1 = 5", "WeightAverage.decay = 1", "QuadraticEquations.rootless = 1.5"),
    ],
)
def test_a_value_that_no_run_can_mean_is_refused_by_its_name(line):
    name = line.split(" = ")[0]
    sentence = refused(line)
    assert sentence.startswith(f"{name} = ") and " must be a" in sentence
    assert sentence.endswith(".") and "\n" not in sentence


@pytest.mark.parametrize(
    "line",
    [
        *("adamw.b1 = 0.0", "adamw.weight_decay = 0", "cosine.warmup_steps = 1e3"),
        *("Trainer.eval_every = 0", "Trainer.mesh = (2, -1)", f"Trainer.seed = {2**32 - 1}"),
        *("BlockRecurrentTransformer.recurrent_layers = (-1,)", "TransformerXL.memory_length = 0"),
        *("RecallTask.document_length = 3", "adafactor.momentum = None"),
    ],
)
def test_values_at_the_ends_of_their_range_pass(line):
    config.parse(bindings=[line])


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("Trainer.plateau = @Corpus()", "a ReduceOnPlateau"),
        ("Trainer.checkpoints = @LSTM", "a CheckpointPolicy"),
        ("Trainer.corpus = @Corpus", "a Corpus"),
        ("Trainer.steps = @Corpus()", "a whole number"),
        ("Trainer.evaluation = @RecallScore()", "an EvaluationSettings"),
        ("Trainer.schedule = @adamw", "makes an Array"),
        ("Trainer.optimizer = @rsqrt", "makes a GradientTransformation"),
        ("Trainer.model = @LSTM()", "write @LSTM, no brackets."),
        ("Corpus.source = @ByteVocabulary()", "a Source"),
        ("Mixture.corpora = [@Evaluation()]", "a list with a Corpus"),
        ("RecurrentMemoryTransformer.body = @LSTM", "makes a Body"),
        ("TransformerXL.memory = @ExternalMemory", "makes a HiddenMemory"),
    ],
)
def test_a_reference_to_what_does_not_belong_there_is_refused(line, told):
    sentence = refused(line)
    assert sentence.startswith(f"{line} must be") and told in sentence


@pytest.mark.parametrize(
    "lines",
    [
        ["FirstDocuments.source = @FirstDocuments()"],
        ["GutenbergText.source = @FirstTokens()", "FirstTokens.source = @GutenbergText()"],
        ["B = @FirstTokens()", "FirstTokens.source = %B"],
    ],
)
def test_references_that_lead_back_to_themselves_are_named(lines):
    sentence = refused(*lines)
    assert "lead back to where they begin" in sentence and "First" in sentence


def test_a_source_may_be_of_its_own_class_in_another_scope():
    config.parse(
        bindings=[
            "FirstDocuments.source = @inner/FirstDocuments()",
            "inner/FirstDocuments.source = @TextFiles()",
        ]
    )


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
