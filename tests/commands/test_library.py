"""brt as a library: its names, its help, its errors, and its command."""

import inspect
import pydoc
import runpy
import subprocess
import sys

import gin
import jax
import pytest
from flax import nnx

import brt
from brt import BlockRecurrentTransformer, RecurrentCell
from brt.__main__ import main
from brt.bindings.errors import ConfigError, MissingBinding, building
from brt.bindings.registry import known_names, register_all
from brt.checks import configurable
from brt.training.optimization.optimizers import adafactor


@pytest.mark.parametrize("name", brt.__all__)
def test_every_name_is_there_and_is_documented(name):
    assert getattr(brt, name).__doc__
    assert name in dir(brt)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError):
        brt.Transformer  # noqa: B018


@pytest.mark.parametrize("named", [BlockRecurrentTransformer, RecurrentCell, adafactor])
def test_help_shows_plain_types(named):
    text = pydoc.render_doc(named, renderer=pydoc.plaintext)
    assert "<object object" not in text and "Annotated" not in text and "Range(" not in text


def test_signatures_show_the_arguments_that_gin_binds():
    register_all()
    parameters = inspect.signature(BlockRecurrentTransformer).parameters
    assert {*known_names()["BlockRecurrentTransformer"]} < {*parameters}
    assert parameters["window"].annotation is int and parameters["dropout"].default == 0.0


def test_missing_arguments_are_a_type_error():
    with pytest.raises(TypeError, match=r"BlockRecurrentTransformer.*'window'") as caught:
        BlockRecurrentTransformer(nnx.Rngs(0), vocabulary_size=256, width=8)
    assert "width" not in str(caught.value).split("\n")[0]


@configurable(denylist=["rngs"])
class Needs:
    def __init__(self, rngs, size: int, seed: int = 0):
        if seed:
            Inner(seed)


class Inner:
    def __init__(self, rngs, size):
        pass


@configurable(denylist=["rngs"])
class InheritsInner(Inner):
    pass


@gin.configurable
def needs_as_gin(size=gin.REQUIRED):
    return size


@pytest.mark.parametrize(
    ("call", "error", "part"),
    [
        (lambda: Needs(0), MissingBinding, "Nothing binds Needs.size: bind it"),
        (lambda: InheritsInner(0), MissingBinding, "Nothing binds InheritsInner.size: bind it"),
        (lambda: needs_as_gin(), MissingBinding, "Nothing binds needs_as_gin.size: bind it"),
        (Needs, ConfigError, "@Needs() is built too early: write @Needs, no brackets."),
        (lambda: Needs(0, 1, 2), ConfigError, "A binding of Needs has a value of a wrong type"),
        (lambda: Needs(0, size="1"), ValueError, "Needs.size = '1' must"),
        (lambda: Inner(0), TypeError, "Inner"),
        (lambda: jax.numpy.zeros(2) + jax.numpy.zeros(3), TypeError, "incompatible shapes"),
    ],
)
def test_a_missing_binding_is_named_and_no_other_mistake(call, error, part):
    with pytest.raises(error) as caught, building():
        call()
    assert isinstance(caught.value, ConfigError) == issubclass(error, ConfigError)
    assert part in str(caught.value)


def brt_command(*arguments):
    line = [sys.executable, "-m", "brt", *arguments]
    return subprocess.run(line, capture_output=True, text=True, check=False)


def test_the_command_runs_and_lists_the_others():
    listed = brt_command()
    assert listed.returncode == 0 and "train" in listed.stdout
    wrong = brt_command("evluate")
    assert wrong.returncode == 1 and "evluate" in wrong.stderr and "evaluate" in wrong.stderr
    refused = brt_command("generate", "--model=gone")
    assert refused.returncode == 1 and "gone" in refused.stderr


def test_the_command_finds_modules_of_the_current_folder(tmp_path, monkeypatch):
    found = []
    monkeypatch.setattr(runpy, "run_module", lambda *_, **__: found.append(list(sys.path)))
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", str(tmp_path))])
    monkeypatch.setattr(sys, "argv", ["brt", "train"])
    monkeypatch.chdir(tmp_path)
    main()
    assert found[0][0] == str(tmp_path)
