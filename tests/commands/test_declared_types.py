"""Values outside the type or range that a parameter declares are refused by its name."""

import ast
import inspect
import math
import typing

import gin
import numpy as np
import pytest
from paths import CONFIGS
from tiny_run import gin_afterwards  # noqa: F401

from brt import config
from brt.bindings.registry import parameters_of, register_all
from brt.checks import PLAIN, UNKNOWN, Count, Positive, allows, words_for
from brt.config import ConfigError

MISFIT = 0j
"""A value of a type that no parameter takes."""


def configurables():
    """Yields the name, the class or function and the parameters of everything gin may bind."""
    register_all()
    for selector, entry in gin.config._REGISTRY.items():
        if (entry.module or "").startswith("brt"):
            hidden = {"self", *(entry.denylist or ())}
            arguments = {
                name: parameter
                for name, parameter in parameters_of(entry).items()
                if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
            }
            bindable = {name: each for name, each in arguments.items() if name not in hidden}
            others = dict.fromkeys(arguments.keys() - {"self"}, UNKNOWN)
            yield selector.rsplit(".", 1)[-1], entry.wrapped, bindable, others


CONFIGURABLES = sorted(configurables(), key=lambda each: each[0])
DECLARED = [
    (f"{owner}.{name}", parameter.annotation, parameter.default)
    for owner, _, parameters, _ in CONFIGURABLES
    for name, parameter in parameters.items()
]


def constrained(annotation):
    """Returns all annotations in an annotation that have a range or choices, with their words."""
    parts = typing.get_args(annotation)
    if typing.get_origin(annotation) is typing.Annotated:
        return [(annotation, words_for(annotation))]
    return [one for part in parts for one in constrained(part)]


def bare_numbers(annotation):
    """Returns the numbers of an annotation that have no range."""
    if typing.get_origin(annotation) is typing.Annotated:
        return []
    inner = [one for each in typing.get_args(annotation) for one in bare_numbers(each)]
    return [annotation] if annotation in (int, float) else inner


def refused(*lines):
    with pytest.raises(ConfigError) as caught:
        config.parse(bindings=lines)
    return str(caught.value)


def test_every_plain_default_has_its_declared_type():
    for name, annotation, default in DECLARED:
        if isinstance(default, PLAIN):
            assert annotation is not inspect.Parameter.empty or default is None, name
            assert allows(annotation, default), name


def test_every_number_declares_its_range():
    assert not [name for name, annotation, _ in DECLARED if bare_numbers(annotation)]


def test_a_python_call_refuses_a_wrong_type_of_every_parameter():
    for owner, made, parameters, arguments in CONFIGURABLES:
        for name, parameter in parameters.items():
            assert not allows(parameter.annotation, MISFIT), name
            with pytest.raises(ValueError) as caught:
                made(**{**arguments, name: MISFIT})
            assert str(caught.value).startswith(f"{owner}.{name} = 0j must be "), name


def test_a_binding_refuses_a_wrong_type_of_every_parameter():
    for name, annotation, _ in DECLARED:
        assert not allows(annotation, MISFIT), name
        assert refused(f"{name} = 0j").startswith(f"{name} = 0j must be "), name


def test_every_range_refuses_what_is_no_finite_number():
    pairs = [pair for _, each, _ in DECLARED for pair in constrained(each)]
    ranges = {words: one for one, words in pairs if typing.get_args(one)[0] in (int, float)}
    assert len(ranges) > 10
    for words, one in ranges.items():
        for value in (math.nan, math.inf, -math.inf, True, "1", 10**40, 10**400):
            assert not allows(one, value), (words, value)


def test_every_choice_names_its_strings():
    named = 0
    for name, annotation, _ in DECLARED:
        for one, words in constrained(annotation):
            if words.startswith("one of "):
                named += 1
                choices = ast.literal_eval(f"[{words.removeprefix('one of ')}]")
                sentence = refused(f"{name} = 'nonsense'")
                assert all(repr(choice) in sentence for choice in choices), name
                assert all(allows(one, choice) for choice in choices), name
    assert named > 30


def test_numbers_of_numpy_count_as_numbers_of_python():
    assert allows(Count, np.int64(3)) and not allows(Count, np.int64(0))
    assert allows(Positive, np.float32(0.5)) and not allows(Count, np.float32(1))
    assert allows(tuple[Count, ...], [np.int32(1)]) and not allows(bool, np.int32(1))


@pytest.mark.parametrize(
    "line",
    [
        *("adamw.b1 = 0", "adamw.clip_norm = None", "cosine.warmup_steps = 1e3"),
        *("Trainer.mesh = [1, -1]", f"Trainer.seed = {2**32 - 1}", "Trainer.eval_every = 0"),
        "BlockRecurrentTransformer.recurrent_layers = ()",
        "BlockRecurrentTransformer.recurrent_layers = [1, -1]",
        *("Mixture.weights = [1, 0.5]", "Mixture.corpora = [@a/Corpus(), @b/Corpus()]"),
        "TransformerXL.tied_projections = (True, False)",
        *("RecallTask.document_length = (250, 320)", "RecallTask.document_length = 3"),
        *("Corpus.vocabulary = 'bytes'", "Corpus.vocabulary = @ByteVocabulary()"),
        "Trainer.corpus = @Mixture()",
    ],
)
def test_values_of_the_declared_type_pass(line):
    config.parse(bindings=[line])


def test_a_tuple_of_equal_kinds_names_the_kind_once():
    assert words_for(tuple[Count, Count]).count(words_for(Count)) == 1
    assert words_for(tuple[int, str, int]).count(words_for(int)) == 2


def test_a_value_alone_is_told_how_to_be_a_tuple():
    sentence = refused("BlockRecurrentTransformer.recurrent_layers = 9")
    assert sentence.startswith("BlockRecurrentTransformer.recurrent_layers = 9 must be")
    assert "(9,)" in sentence
    assert "('all',)" in refused("WordCounting.splits = 'all'")


@pytest.mark.parametrize(
    "lines",
    [
        ["FirstTokens.source = @FirstTokens()"],
        ["GutenbergText.source = @FirstTokens()", "FirstTokens.source = @GutenbergText()"],
        ["B = @FirstTokens()", "FirstTokens.source = %B"],
    ],
)
def test_references_that_lead_back_to_themselves_are_refused(lines):
    lines = [*lines, "Corpus.source = @FirstTokens()"]
    with pytest.raises(ConfigError, match="leads back to itself"):
        config.parse([str(CONFIGS / "quickstart.gin")], lines)


def test_macros_that_stand_for_one_another_are_refused_by_name():
    sentence = refused("X = %Y", "Y = %X", "Trainer.steps = %X")
    assert "X = %Y" in sentence and "by macros" in sentence


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
    assert "recurrent_layers = (0, 1.0)" in sentence
