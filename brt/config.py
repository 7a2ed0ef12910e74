"""Gin: parses, checks and describes bindings.

Gin accepts three mistakes, or hardly explains them: a binding that nothing reads, a macro that
nothing reads, and a string without quotes. Here each ends in one clear sentence.
"""

import contextlib
import copy
import difflib
import functools
import inspect
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import gin
from absl import logging

from brt.bindings.bound_values import check_bound_values, parameters_of
from brt.bindings.gin_files import (
    GinReader,
    NotAllowed,
    check_statements,
    gin_text,
    read_gin_text,
)
from brt.bindings.registration import register, register_all
from brt.checks import shortened, stands_alone
from brt.storage.paths import is_remote_file
from brt.storage.shipped import gin_folders

RENAMED = {"LanguageModel": "BlockRecurrentTransformer"}
"""Names in configs and run folders of earlier versions."""
LONGEST_LINE = 1_500
"""Characters of a line of a message, which may contain a value."""
MOST_UNREAD = 20


class ConfigError(ValueError):
    """A gin file or binding is wrong; the message names it and the remedy."""

    def __init__(self, message: str):
        super().__init__("\n".join(shortened(x, LONGEST_LINE) for x in message.split("\n")))


COMPLETED_BY = {
    "vocabulary_size": "a corpus, such as --gin_file=configs/corpora/text.gin (to a config of "
    "brt.benchmark: CONFIG+configs/corpora/text.gin), or your text, --text=PATH",
    "segment_length": "an algorithmic task, as in --gin_file=configs/tasks/copy.gin",
}
"""Macros that model configs read and data configs bind."""

PAPER_WORDS = {"config": "arrangement", "configuration": "arrangement"}

SWITCHES = {
    "RecurrentCell": "BlockRecurrentTransformer.recurrent_layers",
    "ExternalMemory": "BlockRecurrentTransformer.memorizing_layers",
    "ReduceOnPlateau": "Trainer.plateau",
    "WeightAverage": "Trainer.average",
}
"""Bindings that leave out a part of a model or of training if they are `()` or None."""

_bound_by_flags: set[str] = set()
"""Names that the binding lines of the last `parse` bind, not its files."""


def split_flags(argv: Sequence[str]) -> list[str]:
    """Rewrites `--gin.NAME=VALUE` as `--gin_bindings=NAME = VALUE`, which absl can parse."""
    prefix = "--gin."
    return [
        "--gin_bindings=" + argument.removeprefix(prefix).replace("=", " = ", 1)
        if argument.startswith(prefix)
        else argument
        for argument in argv
    ]


def parse(
    gin_files: Sequence[str | os.PathLike] = (),
    bindings: Sequence[str] = (),
    search_paths: Sequence[str] = (),
    allow_imports: Sequence[str] = (),
) -> None:
    """Clears gin, then reads files in order and bindings after them.

    Args:
        gin_files: paths, or several joined by `+`, as in `SYSTEM.gin+CORPUS.gin`; their includes
            are looked up in the working directory, the parent of `configs/`, `configs/` and
            `search_paths`.
        bindings: lines such as `RecurrentCell.gate = "lstm"`.
        allow_imports: modules and packages outside brt whose code the files and bindings may run.
    """
    register("Trainer")
    gin.clear_config()
    # Gin also looks into importable packages, and stumbles over a folder named configs.
    reader = GinReader(allow_imports)
    gin.config._FILE_READERS[:] = [(reader, os.path.lexists), (reader, is_remote_file)]
    gin.config._LOCATION_PREFIXES[:] = ["", *map(str, gin_folders()), *search_paths]
    for file in (file for joined in gin_files for file in split_files(joined)):
        if not file.strip():
            raise ConfigError("A --gin_file is empty: write --gin_file=PATH.")
        with _explained(f"In {file}", file=file):
            gin.parse_config_file(file)
    _bound_by_flags.clear()
    for binding in bindings:
        if not binding.strip():
            raise ConfigError("A binding is empty: write --gin.NAME=VALUE.")
        with _explained(f"In the binding {shortened(repr(binding))}", binding):
            checked = gin_text(binding)
            _bound_by_flags.update(check_statements(checked, allow_imports))
            gin.parse_config(checked)
    with _explained("In the configuration"):
        gin.finalize()
    gin.config._set_config_is_locked(False)  # modules that are imported later may register classes
    _check_passed_on()
    try:
        check_bound_values(allow_imports)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def evaluate_macros(missing: int | None = None) -> None:
    """Binds macros to the values of calls, `vocabulary_size = @corpus_vocabulary_size()`.

    A run folder then has the number. A call that needs a file of another machine stays.

    missing: the number of a call whose file is yet to be made.
    """
    for (_, selector), bound in gin.config._CONFIG.items():
        value = bound.get("value")
        if selector == "gin.macro" and isinstance(value, gin.config.ConfigurableReference):
            number = missing
            with contextlib.suppress(OSError, ValueError, ImportError):
                number = copy.deepcopy(value)  # a copy of a call is its value
            if isinstance(number, int):
                bound["value"] = number


def split_files(joined: str | os.PathLike) -> list[str]:
    return [str(joined)] if os.path.isfile(joined) else str(joined).split("+")


def _check_passed_on():
    names = _registered_names()
    for (_, selector), bound in gin.config._CONFIG.items():
        entry = gin.config._REGISTRY.get(selector)
        if entry is None or not inspect.isclass(entry.wrapped) or entry.name not in names:
            continue
        if not any(p.kind is p.VAR_KEYWORD for p in parameters_of(entry).values()):
            continue
        own = [f"{entry.name}.{parameter}" for parameter in names[entry.name]]
        bases = [base.__name__ for base in entry.wrapped.__mro__[1:]]
        for name in bound.keys() - set(names[entry.name]):
            of_base = [f"{base}.{name}" for base in bases if name in names.get(base, ())]
            nearest = _nearest(f"{entry.name}.{name}", of_base or own)
            raise ConfigError(f"{entry.name} has no parameter {name}.{nearest}")


@contextlib.contextmanager
def _explained(where, text="", file=None):
    """Raises errors as `ConfigError`s with `where`, and lines of `file` or `text`."""
    try:
        yield
    except RecursionError:
        raise ConfigError(f"{where}: brackets lie too deep in one another.") from None
    except NotAllowed as error:
        raise ConfigError(f"{where}: {_without_gin_lines(error)}") from None
    except (SyntaxError, ValueError, TypeError, OSError, RuntimeError) as error:
        if file and isinstance(error, SyntaxError | ValueError):
            with contextlib.suppress(OSError, ValueError):
                text = read_gin_text(file)
        raise ConfigError(_explain(_without_gin_lines(error), where, text)) from error
    except ModuleNotFoundError as error:
        name = str(error).split("'")[1]  # gin passes on the message only
        raise ConfigError(
            f"{where}: Python finds no module {name}: call the command in the folder that "
            "holds it, or put that folder on PYTHONPATH."
        ) from error
    except ImportError as error:
        raise ConfigError(f"{where}: {str(error).strip()}.") from error
    except Exception as error:  # tokenize errors share no better base class
        raise ConfigError(f"{where}: {error}. Is a bracket or a quote left open?") from error


def _without_gin_lines(error):
    """Returns the message of an error without the lines that gin appends."""
    return str(error) if isinstance(error, SyntaxError) else str(error).split("\n  In ")[0]


def _explain(message, where, text):
    first = message.strip().split("\n")[0]
    if "malformed node" in message or "Unable to parse value" in message:
        number = re.search(r"line (\d+)\)", message.split("malformed node")[-1].split("\n")[-1])
        lines = text.split("\n")
        line = lines[int(number[1]) - 1] if number and int(number[1]) <= len(lines) else "NAME ="
        name, _, value = (shortened(part.strip()) for part in line.partition("="))
        return (
            f"{where}: {value} is not a gin value. If it is meant as a string, quote it: "
            f'{name} = "{value}", on a command line --gin.{name}=\'"{value}"\'.'
        )
    if "Unable to open file" in message:
        return f"{where}: the file does not exist; {first.rstrip('.')}."
    if "No configurable matching" in message:
        unknown = message.split("'")[1].strip("@%").split("(")[0]
        if now := RENAMED.get(unknown.rpartition("/")[2].partition(".")[0]):
            return (
                f"{where}: {unknown} is called {now} now. Rename it in your config; read an "
                "earlier run folder with the version of brt that made it."
            )
        register_all()
        return f"{where}: nothing is called {unknown}.{_nearest(unknown, dict(_entries()))}"
    if "Ambiguous selector" in message:
        return (
            f"{where}: {first.strip(chr(34))} Write its module before the name; where a file has "
            "moved into brt, remove the old one."
        )
    if "doesn't have a parameter named" in message:
        configurable, parameter = message.split("'")[1], message.split("named '")[1].split("'")[0]
        entries = (e for _, e in gin.config._REGISTRY.items() if e.name == configurable)
        own = [f"{configurable}.{name}" for entry in entries for name in _bindable(entry)]
        of_parts = [f"{part}.{parameter}" for part in _parts(configurable, parameter)]
        word = f"{configurable}.{PAPER_WORDS.get(parameter)}"
        every = (f"{name}.{p}" for name, parameters in known_names().items() for p in parameters)
        names = [word] if word in own else of_parts or own or every
        nearest = _nearest(f"{configurable}.{parameter}", names)
        return f"{where}: {configurable} has no parameter {parameter}.{nearest}"
    if "No bindings specified for" in message:
        macro = message.split("'")[1].removesuffix("/gin.macro")
        if macro in COMPLETED_BY:
            return f"{where}: %{macro} has no value. Add {COMPLETED_BY[macro]}."
        return f"{where}: the macro {macro} has no value; add a line {macro} = ... ."
    return f"{where}: {message.strip()}"


def _nearest(name, candidates):
    names = difflib.get_close_matches(name, list(candidates), n=1, cutoff=0.0)
    return f" The nearest valid name is {names[0]}." if names else ""


def _parts(configurable, parameter) -> list[str]:
    names = known_names()
    built = (default(f"{configurable}.{own}") for own in names.get(configurable, ()))
    parts = (part.__name__ for part in built if inspect.isclass(part) or inspect.isfunction(part))
    return [part for part in parts if parameter in names.get(part, ())]


def known_names() -> dict[str, list[str]]:
    """Returns brt's configurables, each with the parameters that gin may bind."""
    register_all()
    return _registered_names()


def _registered_names():
    return {name: _bindable(entry) for name, entry in _entries("brt")}


def _entries(package: str | None = None) -> Iterator[tuple[str, Any]]:
    """Yields names and entries of gin's registry, of a package or of all but gin itself."""
    for selector, entry in gin.config._REGISTRY.items():  # no public listing in gin 0.5
        root = (entry.module or "").split(".")[0]
        if root == package or (package is None and root != "gin"):
            yield selector.rsplit(".", 1)[-1], entry


def configurable_class(name: str) -> type | None:
    register(name)
    entries = gin.config._REGISTRY.get_all_matches(name)
    return next((entry.wrapped for entry in entries if inspect.isclass(entry.wrapped)), None)


def _bindable(entry):
    return [
        name
        for name, parameter in parameters_of(entry).items()
        if name != "self" and name not in (entry.denylist or ())
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]


def declarations() -> dict[str, Any]:
    """Returns the annotation of every parameter that gin may bind: of `Trainer.steps`, `Count`."""
    register_all()
    return _declarations(len(gin.config._REGISTRY))


@functools.lru_cache(maxsize=1)
def _declarations(registered):
    return {
        f"{owner}.{name}": declared
        for owner, entry in _entries("brt")
        for name in _bindable(entry)
        if (declared := parameters_of(entry)[name].annotation) is not inspect.Parameter.empty
    }


def as_declared(settings: dict[str, Any]) -> dict[str, Any]:
    """Returns bindings with `(9,)` where a tuple is bound to 9, as `parse` binds them."""
    declared = declarations()
    return {
        name: (value,) if stands_alone(declared.get(name.rpartition("/")[2], Any), value) else value
        for name, value in settings.items()
    }


@functools.cache
def default(name: str) -> Any:
    """Returns the value of a binding, `Trainer.stream`, that nothing binds.

    `gin.REQUIRED` where it has none, or where brt has no such configurable or parameter.
    """
    configurable, _, parameter = name.rpartition(".")
    register(configurable)
    entry = dict(_entries("brt")).get(configurable)
    declared = parameters_of(entry).get(parameter) if entry else None
    if declared is None or declared.default is inspect.Parameter.empty:
        return gin.REQUIRED
    return declared.default


def read_bindings() -> dict[str, str]:
    """Returns everything read so far, bound or default: `RecurrentCell.gate` to `'fixed'`."""
    return _flatten(gin.config._OPERATIVE_CONFIG)


def check_all_read() -> None:
    """Refuses bindings and macros that a full build has not read.

    A file's bindings of a part that another binding leaves out (`SWITCHES`) only cause a warning.
    Those of a source that a flag replaces are removed.
    """
    read, bound = read_bindings(), _flatten(gin.config._CONFIG)
    used = {_binding_of(name, bound) for name in read}
    left = _without_switched_off([name for name in bound if name not in used], read, bound)
    if left:
        sentences = [_unread(name, read) for name in left[:MOST_UNREAD]]
        if more := len(left) - len(sentences):
            sentences.append(f"Nothing reads {more:,} more bindings either.")
        raise ConfigError("\n".join(sentences))


def _without_switched_off(left, read, bound):
    off: dict[str, list[str]] = {}
    for name in left:
        switch = SWITCHES.get(name.rpartition("/")[2].partition(".")[0])
        if (
            switch
            and switch in read
            and bound.get(switch) in ("()", "[]", "None")
            and name not in _bound_by_flags
        ):
            off.setdefault(switch, []).append(name)
    for switch, names in off.items():
        logging.warning("%s = %s: %s not used.", switch, bound[switch], ", ".join(names))
    passed = {name for names in off.values() for name in names}
    replaced: set[str] = set()
    if "Corpus.source" in _bound_by_flags:  # it replaces the source of a file, with its bindings
        sources = (name for name in left if _is_source(name.partition(".")[0]))
        replaced.update(name for name in sources if name not in _bound_by_flags)
    passed, replaced = (_with_macros(names, bound) & {*left} for names in (passed, replaced))
    _unbind(replaced)  # a run folder, written from gin's bindings, has no flags that replace them
    return [name for name in left if name not in passed | replaced]


def _with_macros(names, bound):
    macros = {macro for name in names for macro in re.findall(r"%([\w./]+)", bound[name])}
    return names | (macros - _bound_by_flags)


def _unbind(names):
    for key, parameters in list(gin.config._CONFIG.items()):
        for parameter in list(parameters):
            if _flatten({key: {parameter: None}}).keys() <= names:
                del parameters[parameter]
        if not parameters:
            del gin.config._CONFIG[key]


def _unread(name, read):
    """Returns why nothing reads a binding: its part is not used, or a name is wrong."""
    configurable, _, parameter = name.rpartition(".")
    if not configurable:
        return (
            f"The macro {name} is bound, but nothing reads it: write %{name} where its value "
            f"belongs.{_nearest(name, read)}"
        )
    configurables = {other.rpartition(".")[0].rpartition("/")[2] for other in read}
    used = configurable.rpartition("/")[2] in configurables
    register_all()
    if parameter and configurable in dict(_entries()) and not used:
        alike = [other for other in read if other.endswith(f".{parameter}")]
        advice = "Leave the binding out."
        if _is_source(configurable) and "Corpus.source" in read:
            advice = (
                "Leave the binding out, or give one data config after a model config, as in "
                "--gin_file=configs/systems/xl_512.gin --gin_file=configs/corpora/text.gin."
            )
        return (
            f"{name} is bound, but nothing reads it: nothing here uses {configurable}. "
            f"{advice}{_nearest(name, alike)}"
        )
    scope, _, rest = name.rpartition("/")
    if scope == "evaluation" and rest in read:
        return (
            f"{name} is bound, but nothing reads it: bind Evaluation.model to the model of "
            "Trainer.model in that scope, as in Evaluation.model = @evaluation/TransformerXL."
        )
    return f"{name} is bound, but nothing reads it.{_nearest(name, read)}"


@runtime_checkable
class _GivesDocuments(Protocol):
    """A `brt.data.sources.base.Source`, which this module may not import."""

    def documents(self, split: str) -> Iterator[Any]: ...


def _is_source(configurable):
    entries = (entry for _, entry in gin.config._REGISTRY.items() if entry.name == configurable)
    classes = (entry.wrapped for entry in entries if inspect.isclass(entry.wrapped))
    return any(issubclass(cls, _GivesDocuments) for cls in classes)


def _binding_of(name, bound):
    """Returns the binding of a value read as `a/b/Corpus.store`: of the longest scope bound."""
    scope, _, parameter = name.rpartition("/")
    parts = scope.split("/") if scope else []
    candidates = ("/".join([*parts[:n], parameter]) for n in range(len(parts), -1, -1))
    return next((candidate for candidate in candidates if candidate in bound), None)


def message(error: Exception) -> str:
    """Returns the message of an error without its number and gin's list of calls."""
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        text = error.strerror
        if error.filename is not None:
            text = f"{os.fsdecode(error.filename)}: {text}"
    lines = text.split("\n  In call to configurable")[0].strip().split("\n")
    return "\n".join(shortened(line, LONGEST_LINE) for line in lines)


def unbuildable(error: Exception) -> ConfigError | None:
    """Returns an error for a missing REQUIRED binding or a value of a wrong type, or None."""
    text = message(error).split("\n")[0]
    called = re.search(r"In call to configurable '(\w+)'", str(error))
    if lacking := re.fullmatch(r"(\w+)\(\) missing required arguments: (.*)", text):
        names = ", ".join(f"{lacking[1]}.{name}" for name in re.findall(r"\w+", lacking[2]))
        model = " The model config is missing: pass one, as in --gin_file=configs/quickstart.gin."
        return ConfigError(
            f"Nothing binds {names}: bind it in a gin file or by --gin.NAME=VALUE."
            f"{model if 'Trainer.optimizer' in names else ''}"
        )
    if called and re.search(r"missing \d+ required positional arguments?: 'rngs'", text):
        return ConfigError(f"@{called[1]}() is built too early: write @{called[1]}, no brackets.")
    if isinstance(error, TypeError) and called:
        return ConfigError(f"A binding of {called[1]} has a value of a wrong type: {text}")
    return None


def _flatten(bindings):
    flat = {}
    for (scope, selector), parameters in bindings.items():
        name = selector.rsplit(".", 1)[-1]
        for parameter, value in parameters.items():
            if selector == "gin.macro":
                flat[scope] = repr(value)
            else:
                flat[f"{scope}/{name}.{parameter}" if scope else f"{name}.{parameter}"] = repr(
                    value
                )
    return flat


def differences(old: dict[str, str], new: dict[str, str]) -> list[str]:
    """Returns a line for each binding that differs: `RecurrentCell.gate: 'fixed' -> 'lstm'`.

    A binding of only one side, whose version may have a further parameter, is compared with its
    default.
    """
    return [
        f"{name}: {old.get(name, '(not bound)')} -> {new.get(name, '(not bound)')}"
        for name in sorted(old.keys() | new.keys())
        if old.get(name, _default_text(name)) != new.get(name, _default_text(name))
    ]


def _default_text(name):
    value = default(name.rpartition("/")[2])
    return None if value is gin.REQUIRED else repr(value)
