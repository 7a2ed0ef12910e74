"""Entries: experiments of configs/, scaled down, on another corpus, with an equal budget."""

import inspect
import itertools
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from brt.config import split_files
from brt.reporting.gin_text import reachable, read_gin, read_gin_file, resolved, write_gin
from brt.storage.shipped import gin_folders
from brt.sweeps.labels import file_name, short_labels
from brt.sweeps.scales import STANDS_FOR, Scale, SweepError, scaled, with_corpus
from brt.training.optimization import schedules

SIZE, STEPS = "Trainer.tokens_per_step", "Trainer.steps"


class SweepEntry(NamedTuple):
    """One experiment of a sweep.

    Attributes:
        name: of its config and its runs.
        settings: all its bindings.
        paper: content of stands_for.json: the config, and its settings in the papers' tables.
        trained_by: name of the first entry with the same training, whose parameters it evaluates.
        notes: sentences on other changes.
        label: what distinguishes it from the other entries.
        imports: import lines of its configs.
    """

    name: str
    settings: dict
    paper: dict
    trained_by: str = ""
    notes: Sequence[str] = ()
    label: str = ""
    imports: Sequence[str] = ()


def find_file(name: str, path: str | Path = "", search_paths: Sequence[str] = ()) -> Path:
    """Returns a file, looked up next to the list that names the file, then as --gin_file is."""
    folders: list[str | Path] = ["", *gin_folders(), *search_paths]
    if path:
        folders.insert(0, Path(path).parent)
    found = next((file for f in folders if (file := Path(f, name)).is_file()), None)
    if not found:
        raise SweepError(
            f"{path} names {name}, which is neither beside it nor in configs/."
            if path
            else f"There is no file {name}, neither here nor among the configs of brt "
            f"({gin_folders()[1]}): name a file with one config and its bindings a line."
        )
    return found


def read_sweep(
    path: str | Path,
    scale: Scale,
    corpus: str | None,
    bindings: Sequence[str],
    tokens: int | None,
    tokens_per_step: int | None = None,
    lines: Sequence[str] | None = None,
    search_paths: Sequence[str] = (),
) -> list[SweepEntry]:
    """Returns the entries of a file, one a line: gin files joined by `+`, and bindings after them.

    A binding with several values, `RecurrentCell.gate=fixed,lstm`, makes an entry of each; several
    such bindings, of each combination.

    Args:
        scale: of the models; bindings of entries are those of the published size.
        corpus: a gin file whose bindings replace all that belongs to the configs' corpus, or None;
            an entry's own bindings come after it.
        bindings: gin lines for all entries, which no scale divides.
        tokens: that each run trains on, rounded up to whole steps, and in proportion more if an
            entry binds more Trainer.steps than its config; a warm-up of as many steps or more is
            shortened to a tenth. None keeps the number and size of steps and all intervals of each
            entry's config.
        tokens_per_step: of every run; None for the first entry's at this scale, or an entry's own
            in `lines`.
        search_paths: further folders of configs.
    """
    imports_of_flags: list[str] = []
    entries, common = [], read_gin("\n".join(bindings), imports_of_flags)
    if tokens_per_step and SIZE in common:
        raise SweepError(
            f"--tokens_per_step and a binding of {SIZE} both say how large a step is: give one."
        )
    is_grid = lines is not None
    if lines is None:
        path = find_file(os.fspath(path))
        lines = path.read_text(encoding="utf-8").splitlines()
    size_of_all = tokens_per_step
    named: list[tuple[str, list[str]]] = []
    for line in itertools.chain.from_iterable(map(combinations, lines)):
        config, *changes = line.split()
        imports: list[str] = []
        bound, published = _own(changes, line, path), _read(config, path, imports, search_paths)
        undivided = _of_command(published | bound, common)
        if tokens is not None and STEPS in undivided:
            raise SweepError(
                f"--tokens and a binding of {STEPS} both say how long a run trains: give one."
            )
        # A macro's value moves to its readers, where the tables look.
        macros = {name: value for name, value in (bound | common).items() if "." not in name}
        of_all = {name: value for name, value in common.items() if name not in macros}
        settings = resolved(published | bound | macros)
        paper = {name: settings[name] for name in STANDS_FOR if name in settings}
        of_corpus = (
            read_gin_file(corpus, imports, search_paths) | macros | common if corpus else None
        )
        own = {name: value for name, value in bound.items() if name not in macros}
        settings = _at_scale(settings, scale, of_corpus, own, of_all | undivided)
        own_size, notes = settings[SIZE], []
        if tokens is None:
            settings[SIZE] = tokens_per_step or own_size
        else:
            if not (is_grid and SIZE in bound) or tokens_per_step:
                size_of_all = settings[SIZE] = size_of_all or own_size
            if SIZE in bound and settings[SIZE] != own_size and not tokens_per_step:
                notes.append(
                    f"{line}: {SIZE} = {settings[SIZE]:,}, as in the first entry, so that all have "
                    "the same batch size."
                )
            # An entry of twice its config's steps stays twice as long.
            own_steps = settings.get(STEPS, 1)
            longer = own_steps / resolved(macros | published).get(STEPS, own_steps)
            budget, shortened = _budget(settings, int(tokens * longer), bound, common)
            settings |= budget
            notes += [f"{config}: {note}" for note in shortened]
        settings = resolved(settings | of_all | macros)
        named.append((config, changes))
        name, stands_for = file_name(config, changes), {"config": config, "settings": paper}
        both = tuple(dict.fromkeys(imports + imports_of_flags))
        entries.append(SweepEntry(name, settings, stands_for, notes=notes, imports=both))
    if not entries:
        raise SweepError(f"{path} names no config: write one a line, pg19_rec_fixed_skip.gin.")
    names = [entry.name for entry in entries]
    if twice := {name for name in names if names.count(name) > 1}:
        raise SweepError(
            f"{path} names {', '.join(sorted(twice))} twice; an entry needs one line, and a name "
            "that differs from others in letters or digits."
        )
    first: dict[str, str] = {}
    return [
        entry._replace(
            trained_by=first.setdefault(
                write_gin(_trained(entry.settings), entry.imports), entry.name
            ),
            label=label,
        )
        for entry, label in zip(entries, short_labels(named))
    ]


def _at_scale(settings, scale, of_corpus, own, of_all):
    """Returns settings at a scale, on a corpus, with the bindings of an entry and of all entries.

    An entry's own vocabulary, for example, is not the corpus's; what is scaled stays so.
    """
    settings |= scaled(settings, scale)
    if of_corpus is not None:
        settings = with_corpus(settings, of_corpus)
    settings |= {name: value for name, value in own.items() if name not in STANDS_FOR} | of_all
    if SIZE not in of_all:
        settings[SIZE] //= 1 if "TransformerXL.width" in settings else scale.lengths
    return settings


def _budget(settings, tokens, bound, common):
    """Returns the steps and intervals for so many tokens, and notes on a warm-up cut short."""
    steps = -(-tokens // settings[SIZE])
    ramp = _warmup(settings, steps, bound | common)
    often = {name: value for name, value in _often(steps).items() if name not in bound}
    notes = [
        f"{name} = {value:,}, a tenth of {steps:,} steps: as configured, the rate would still rise "
        "when the run ends."
        for name, value in ramp.items()
    ]
    return {STEPS: steps} | often | ramp, notes


def _of_command(settings, common):
    both = settings | common
    values = resolved(both)
    names = (name for name in (*STANDS_FOR, SIZE) if name in both)
    return {name: values[name] for name in names if reachable(both, name) & common.keys()}


def combinations(line: str) -> list[str]:
    """Expands bindings of several values in a line; returns no line for an empty one."""
    words = line.split("#")[0].split()
    choices = []
    for word in words[1:]:
        name, equals, values = word.partition("=")
        pieces = _values(values) if equals else [""]
        choices.append([f"{name}={_quoted(v)}" if equals else word for v in pieces])
    return (
        [" ".join([words[0], *chosen]) for chosen in itertools.product(*choices)] if words else []
    )


SEPARATE = re.compile(r"""("[^"]*"|'[^']*'|[(\[{]|[)\]}]|,)""")


def _values(text: str) -> list[str]:
    pieces, depth = [""], 0
    for part in SEPARATE.split(text):
        depth += (part in ("(", "[", "{")) - (part in (")", "]", "}"))
        if part == "," and not depth:
            pieces.append("")
        else:
            pieces[-1] += part
    return pieces


def _quoted(value):
    plain = re.fullmatch(r"[A-Za-z_]\w*", value) and value not in ("True", "False", "None")
    return f'"{value}"' if plain else value


def _trained(settings):
    # Without the bindings of evaluation alone; a plateau depends on the evaluation.
    if settings.get("Trainer.plateau"):
        return settings
    evaluation = [name for name in settings if name.startswith("Evaluation.")]
    read = set().union(*(reachable(settings, name) for name in evaluation))
    alone = {name for name in read if name in evaluation or "/" in name}
    return {name: settings[name] for name in sorted(settings.keys() - alone)}


def _own(words, line, path):
    try:
        found = read_gin("\n".join(words))
    except SyntaxError as error:
        raise SweepError(
            f"{path}: {line.strip()!r} is not a config and bindings NAME=VALUE without spaces."
        ) from error
    if len(found) < len(words):
        raise SweepError(f"{path}: {line.strip()!r} binds one name twice: leave one out.")
    return found


def _often(steps):
    often = {"log_every": 50, "eval_every": 5}
    found = {f"Trainer.{name}": max(steps // parts, 1) for name, parts in often.items()}
    return found | {"CheckpointPolicy.every": max(steps // 10, 1)}


def _warmup(settings, steps, own):
    schedule = str(settings.get("Trainer.schedule", "")).strip("@()").rpartition("/")[2]
    name, function = f"{schedule}.warmup_steps", getattr(schedules, schedule, None)
    if function is None or name in own:
        return {}
    usual = inspect.signature(function).parameters["warmup_steps"].default
    return {name: steps // 10} if (settings.get(name, usual) or 0) >= steps else {}


def _read(config, path, imports, search_paths):
    settings: dict[str, Any] = {}
    for name in split_files(config):
        settings |= read_gin_file(find_file(name, path, search_paths), imports, search_paths)
    return settings
