"""Bindings that were read, and unread ones."""

import inspect
import re

from absl import logging

from brt.bindings import gin_private
from brt.bindings.errors import ConfigError, nearest
from brt.bindings.gin_files import name_of
from brt.bindings.registry import configurable_class, default, register_all

MOST_UNREAD = 20
SWITCHES = {
    "RecurrentCell": "BlockRecurrentTransformer.recurrent_layers",
    "ExternalMemory": "BlockRecurrentTransformer.memorizing_layers",
    "ReduceOnPlateau": "Trainer.plateau",
    "WeightAverage": "Trainer.average",
}
"""Bindings that leave out a part of a model or of training when `()` or None."""
CORPORA = "Corpus", "Mixture"
VOCABULARY_SIZE = "vocabulary_size"
"""The macro that the data config of --text binds."""

bound_by_flags: set[str] = set()
"""Names bound by binding lines, not files, of the last `brt.config.parse`."""


def read_bindings() -> dict[str, str]:
    return flatten(gin_private.read())


def flatten(bindings: gin_private.Bindings) -> dict[str, str]:
    return {
        name_of(*key, parameter): repr(value)
        for key, parameters in bindings.items()
        for parameter, value in parameters.items()
    }


def differences(old: dict[str, str], new: dict[str, str]) -> list[str]:
    """Returns a line for each binding that differs: `RecurrentCell.gate: 'fixed' -> 'lstm'`.

    A binding of only one side, from another version perhaps, is compared with its default.
    """
    return [
        f"{name}: {old.get(name, '(not bound)')} -> {new.get(name, '(not bound)')}"
        for name in sorted(old.keys() | new.keys())
        if old.get(name, _default_text(name)) != new.get(name, _default_text(name))
    ]


def _default_text(name):
    value = default(name.rpartition("/")[2])
    return None if value is inspect.Parameter.empty else repr(value)


def check_all_read() -> None:
    """Refuses bindings and macros that a full build has not read.

    A file's bindings of a part that is left out (`SWITCHES`) only cause a warning. Those of a
    source or mixture that a flag replaces are removed, and so is the size of its vocabulary.
    """
    read, bound = read_bindings(), flatten(gin_private.bound())
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
            and name not in bound_by_flags
        ):
            off.setdefault(switch, []).append(name)
    for switch, names in off.items():
        logging.warning("%s = %s: %s not used.", switch, bound[switch], ", ".join(names))
    passed = {name for names in off.values() for name in names}
    replaced: set[str] = set()
    if "Corpus.source" in bound_by_flags:  # a flag replaces the source of a file, with its bindings
        replaced.update(name for name in left if _is_of_data(name) and name not in bound_by_flags)
    passed, replaced = (_with_macros(names, bound) & {*left} for names in (passed, replaced))
    _unbind(replaced)  # a run folder's config has no flags that replace them
    return [name for name in left if name not in passed | replaced]


def _with_macros(names, bound):
    macros = {macro for name in names for macro in re.findall(r"%([\w./]+)", bound[name])}
    return names | (macros - bound_by_flags)


def _unbind(names):
    for key, parameters in list(gin_private.bound().items()):
        for parameter in list(parameters):
            if name_of(*key, parameter) in names:
                del parameters[parameter]
        if not parameters:
            del gin_private.bound()[key]


def _unread(name, read):
    configurable, _, parameter = name.rpartition(".")
    if not configurable:
        return (
            f"The macro {name} is bound, but nothing reads it: write %{name} where its value "
            f"belongs.{nearest(name, read)}"
        )
    configurables = {other.rpartition(".")[0].rpartition("/")[2] for other in read}
    used = configurable.rpartition("/")[2] in configurables
    register_all()
    if parameter and configurable in dict(gin_private.registered()) and not used:
        alike = [other for other in read if other.endswith(f".{parameter}")]
        advice = "Leave the binding out."
        if _is_source(configurable) and "Corpus.source" in read:
            advice = (
                "Leave the binding out, or give one data config after a model config, as in "
                "--gin_file=configs/systems/xl_512.gin --gin_file=configs/corpora/text.gin."
            )
        return (
            f"{name} is bound, but nothing reads it: nothing here uses {configurable}. "
            f"{advice}{nearest(name, alike)}"
        )
    scope, _, rest = name.rpartition("/")
    if scope == "evaluation" and rest in read:
        return (
            f"{name} is bound, but nothing reads it: bind Evaluation.model to the model of "
            "Trainer.model in that scope, as in Evaluation.model = @evaluation/TransformerXL."
        )
    return f"{name} is bound, but nothing reads it.{nearest(name, read)}"


def _is_source(configurable):
    # Only a `Source`, which this module may not import, has documents.
    return hasattr(configurable_class(configurable), "documents")


def _is_of_data(name):
    configurable = name.rpartition(".")[0].rpartition("/")[2]
    return name == VOCABULARY_SIZE or configurable in CORPORA or _is_source(configurable)


def _binding_of(name, bound):
    scope, _, parameter = name.rpartition("/")
    parts = scope.split("/") if scope else []
    candidates = ("/".join([*parts[:n], parameter]) for n in range(len(parts), -1, -1))
    return next((candidate for candidate in candidates if candidate in bound), None)
