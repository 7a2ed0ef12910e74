"""Errors of configs, with the nearest valid name or the remedy."""

import contextlib
import difflib
import inspect
import os
import re
from collections.abc import Iterator

from brt.bindings.gin_files import NotAllowed
from brt.bindings.gin_private import entries_of, registered
from brt.bindings.registry import bindable, default, known_names, register_all
from brt.checks import shortened
from brt.storage.regular_files import read_text

LONGEST_LINE = 1_500
"""Characters of a line of a message, which may contain a value."""
COMPLETED_BY = {
    "vocabulary_size": "a corpus, such as --gin_file=configs/corpora/text.gin (to a config of "
    "brt.benchmark: CONFIG+configs/corpora/text.gin), or your text, --text=PATH",
    "segment_length": "an algorithmic task, as in --gin_file=configs/tasks/copy.gin",
}
"""Macros that model configs read and data configs bind."""


class ConfigError(ValueError):
    """A gin file or binding is wrong."""

    def __init__(self, message: str):
        super().__init__("\n".join(shortened(x, LONGEST_LINE) for x in message.split("\n")))


class MissingBinding(ConfigError):
    """Nothing binds a required parameter."""


@contextlib.contextmanager
def explained(where, text="", file=None):
    """Raises errors as `ConfigError`s with `where`, and lines of `file` or `text`."""
    try:
        yield
    except Exception as error:
        if file and isinstance(error, SyntaxError | ValueError):
            with contextlib.suppress(OSError, ValueError):
                text = read_text(file)
        raise ConfigError(f"{where}: {_explain(error, text)}") from error


def _explain(error, text):
    message = str(error).strip()
    if not isinstance(error, SyntaxError):
        message = message.split("\n  In ")[0]  # without the lines that gin appends
    first, quoted = message.split("\n")[0], [*message.split("'")[1::2], ""]
    if isinstance(error, RecursionError):
        return "brackets or includes lie too deep in one another."
    if isinstance(error, NotAllowed):
        return message
    if isinstance(error, ModuleNotFoundError):  # gin passes on the message only
        return (
            f"Python finds no module {quoted[0]}: call the command in the folder that holds it, "
            "or put that folder on PYTHONPATH."
        )
    if not isinstance(error, SyntaxError | ValueError | TypeError | OSError | RuntimeError):
        what = "" if isinstance(error, ImportError) else " Is a bracket or a quote left open?"
        return f"{message}.{what}"  # tokenize errors share no better base class
    if "malformed node" in message or "Unable to parse value" in message:
        return _no_value(message, text)
    if "Unable to open file" in message:
        return f"the file does not exist; {first.rstrip('.')}."
    if "No configurable matching" in message:
        unknown = quoted[0].strip("@%").split("(")[0]
        register_all()
        return f"nothing is called {unknown}.{nearest(unknown, dict(registered()))}"
    if "Ambiguous selector" in message:
        return f"{first.strip(chr(34))} Write its module before the name."
    if "doesn't have a parameter named" in message:
        configurable, parameter = quoted[0], message.split("named '")[1].split("'")[0]
        entries = (entry for name, entry in registered() if name == configurable)
        own = [f"{configurable}.{name}" for entry in entries for name in bindable(entry)]
        names = [f"{part}.{parameter}" for part in _parts(configurable, parameter)] or own
        advice = nearest(f"{configurable}.{parameter}", names)
        parameters = [name.rpartition(".")[2] for name in names]
        if not difflib.get_close_matches(parameter, parameters):
            advice += f" Its parameters: {', '.join(parameters) or 'none'}."
        return f"{configurable} has no parameter {parameter}.{advice}"
    if "No bindings specified for" in message:
        macro = quoted[0].removesuffix("/gin.macro")
        if macro in COMPLETED_BY:
            return f"%{macro} has no value. Add {COMPLETED_BY[macro]}."
        return f"the macro {macro} has no value; add a line {macro} = ... ."
    return message


def _no_value(message, text):
    number = re.search(r"line (\d+)\)", message.split("malformed node")[-1].split("\n")[-1])
    lines = text.split("\n")
    line = lines[int(number[1]) - 1] if number and int(number[1]) <= len(lines) else "NAME ="
    name, _, value = (shortened(part.strip()) for part in line.partition("="))
    register_all()
    is_name = value in dict(registered())
    hint = f"Write @{value}, or @{value}() for an object. " if is_name else ""
    if value.capitalize() in ("True", "False", "None"):
        hint = f"Write {value.capitalize()}. "
    return (
        f"{value} is not a gin value. {hint}If it is meant as a string, quote it: "
        f'{name} = "{value}", on a command line --gin.{name}=\'"{value}"\'.'
    )


def nearest(name, candidates):
    names = difflib.get_close_matches(name, list(candidates), n=1, cutoff=0.0)
    return f" The nearest valid name is {names[0]}." if names else ""


def _parts(configurable, parameter) -> list[str]:
    names = known_names()
    built = (default(f"{configurable}.{own}") for own in names.get(configurable, ()))
    parts = (part.__name__ for part in built if inspect.isclass(part) or inspect.isfunction(part))
    return [part for part in parts if parameter in names.get(part, ())]


def message(error: Exception) -> str:
    """Returns the message without its number and gin's list of calls."""
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        text = error.strerror
        if error.filename is not None:
            text = f"{os.fsdecode(error.filename)}: {text}"
    lines = text.split("\n  In call to configurable")[0].strip().split("\n")
    return "\n".join(shortened(line, LONGEST_LINE) for line in lines)


@contextlib.contextmanager
def building() -> Iterator[None]:
    """Raises errors of missing or wrongly typed bindings as `ConfigError`s."""
    try:
        yield
    except (TypeError, RuntimeError) as error:
        text = message(error).split("\n")[0]
        called = re.search(r"In call to configurable '(\w+)'", str(error))
        if required := re.match(r"Required bindings for `(\w+)` not provided in config", text):
            called = required  # of `gin.REQUIRED`, in custom code
        if not called or not (required or isinstance(error, TypeError)):
            raise
        entries = entries_of(called[1])
        names = _lacking(entries[0], text, bool(required)) if len(entries) == 1 else []
        if not names:
            wrong = f"A binding of {called[1]} has a value of a wrong type: {text}"
            raise ConfigError(wrong) from error
        raise _unbound(called[1], names, bindable(entries[0])) from error


def _lacking(entry, text, required):
    """Returns the arguments that a call of this configurable itself, not of another, lacked."""
    made = entry.wrapped
    owners = [each.__name__ for each in getattr(made, "__mro__", [made])]
    lacking = re.match(r"(?:.*>\.)?(\w+)(?:\.__init__)?\(\) missing \d+ required ", text)
    is_own = required or (lacking and lacking[1] in owners)
    return re.findall(r"'(\w+)'", text) if is_own else []


def _unbound(owner, names, valid):
    if not {*names} <= {*valid}:
        return ConfigError(f"@{owner}() is built too early: write @{owner}, no brackets.")
    model = " The model config is missing: pass one, as in --gin_file=configs/quickstart.gin."
    return MissingBinding(
        f"Nothing binds {', '.join(f'{owner}.{name}' for name in names)}: bind it in a gin file "
        f"or by --gin.NAME=VALUE.{model if 'optimizer' in names else ''}"
    )
