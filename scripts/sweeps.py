"""Entries: experiments of configs/, made smaller alike, on another corpus, with an equal budget."""

import inspect
import itertools
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from brt.bindings.registry import as_declared
from brt.config import split_files
from brt.data.vocabularies.named import named_vocabulary
from brt.reporting.gin_text import (
    ROOT,
    Reference,
    reachable,
    read_gin,
    read_gin_file,
    resolved,
    write_gin,
)
from brt.reporting.model_settings import model_name, owners
from brt.training.optimization import schedules


class LadderError(ValueError):
    """A ladder cannot be run; the message says what to change."""


class Scale(NamedTuple):
    """Divisors of a model's dimensions; `layers` is what 12 of them become."""

    width: int = 1
    num_heads: int = 1
    head_size: int = 1
    feed_forward_size: int = 1
    lengths: int = 1
    layers: int = 12


SCALES = {
    "paper": Scale(),
    "small": Scale(8, 2, 4, 8, 8, 4),
    "short": Scale(16, 2, 8, 16, 64, 6),
    "tiny": Scale(64, 4, 16, 128, 64, 2),
}
"""small: the 151M stack becomes configs/small/rec_fixed_skip.gin, for a CPU; short: six layers of
width 64 with windows of 8 tokens for 512, in which states have more to carry; tiny: for tests."""

LEAST_WIDTH = 256
"""Of the models that a scale is for; the narrowest published one of text has 384."""

STANDS_FOR = tuple(
    f"{owner}.{name}"
    for owner, names in {
        "BlockRecurrentTransformer": "num_layers width num_heads head_size feed_forward_size "
        "window recurrent_layers memorizing_layers",
        "RecurrentCell": "num_states",
        "ExternalMemory": "size neighbours",
        "TransformerXL": "num_layers width num_heads head_size feed_forward_size",
        "Trainer": "segment_length steps",
    }.items()
    for name in names.split()
)
"""Settings that are scaled, and kept at the paper's scale for the tables."""


class SweepEntry(NamedTuple):
    """One experiment of a ladder.

    Attributes:
        name: of its config and its runs.
        settings: every binding of it.
        paper: content of stands_for.json: the config, and the settings it stands for in the tables.
        trained_by: name of the first entry that is trained alike, whose parameters it evaluates.
        note: a sentence on what was changed besides, or "".
        changes: its own bindings, as text.
    """

    name: str
    settings: dict
    paper: dict
    trained_by: str = ""
    note: str = ""
    changes: str = ""


def read_sweep(
    path: str | Path,
    scale: Scale,
    corpus: str | None,
    bindings: Sequence[str],
    tokens: int | None,
    tokens_per_step: int | None = None,
    lines: Sequence[str] | None = None,
) -> list[SweepEntry]:
    """Returns the entries of a file, one a line: gin files joined by `+`, and bindings after them.

    A binding with several values, `RecurrentCell.gate=fixed,lstm`, makes an entry of each; several
    such bindings, of each combination.

    Args:
        path: of the file; gin files are looked up beside it, from here, and in configs/.
        scale: of the models.
        corpus: a gin file whose bindings replace all that belongs to the configs' corpus, or None;
            an entry's own bindings come after it.
        bindings: gin lines for all entries.
        tokens: that each run trains on, rounded up to whole steps, and as many times more as an
            entry binds more Trainer.steps than its config; a warm-up that would last as long, or
            longer, lasts for a tenth of the steps instead. None for the steps of each entry's own
            config, their size, and what is done every so many of them.
        tokens_per_step: of every run; None for the first entry's at this scale.
        lines: in place of those of the file.
    """
    entries, common = [], as_declared(read_gin("\n".join(bindings)))
    if tokens is not None and "Trainer.steps" in common:
        raise LadderError(
            "--tokens and a binding of Trainer.steps both say how long a run trains: give one."
        )
    if lines is None:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    for line in itertools.chain.from_iterable(map(combinations, lines)):
        config, *own = line.split()
        bound, settings = _own(own, line, path), _read(config, path)
        # An entry of twice its config's steps stays twice as long.
        usual = settings.get("Trainer.steps", 1)
        longer = bound.get("Trainer.steps", usual) / usual
        # A macro's value moves to where it is read: tables look for it there.
        macros = {name: value for name, value in (bound | common).items() if "." not in name}
        settings = as_declared(resolved(settings | bound | macros))
        paper = {name: settings[name] for name in STANDS_FOR if name in settings}
        settings |= scaled(settings, scale)
        if corpus:
            settings = with_corpus(settings, read_gin_file(corpus) | macros | common)
        # An entry's own vocabulary, say, is not the corpus's; what is scaled stays scaled.
        named = {name: value for name, value in bound.items() if name not in STANDS_FOR} | common
        settings |= {name: value for name, value in named.items() if name not in macros}
        shorter = 1 if "TransformerXL.width" in settings else scale.lengths
        of_entry = settings["Trainer.tokens_per_step"] // shorter
        if tokens is None:
            size, steps = tokens_per_step or of_entry, settings["Trainer.steps"]
        else:
            size = tokens_per_step = tokens_per_step or of_entry
            steps = -(-int(tokens * longer) // size)
        settings |= {"Trainer.tokens_per_step": size, "Trainer.steps": steps}
        note = ""
        if tokens is not None:
            ramp = _warmup(settings, steps, bound | common)
            settings |= _often(steps) | ramp
            note = "".join(
                f"{config}: {name} = {value:,}, a tenth of {steps:,} steps: as configured, the "
                "rate would still rise when the run ends."
                for name, value in ramp.items()
            )
        stems = [Path(file).stem for file in config.split("+")]
        name = "-".join([*stems, *(re.sub(r"[^\w.-]+", "_", b).strip("_") for b in own)])
        last = {name: value for name, value in common.items() if name not in macros}
        settings = resolved(settings | last | macros)
        stands_for = {"config": config, "settings": paper}
        entries.append(SweepEntry(name, settings, stands_for, note=note, changes=" ".join(own)))
    names = [entry.name for entry in entries]
    if not entries:
        raise LadderError(f"{path} names no config: write one a line, pg19_rec_fixed_skip.gin.")
    if twice := {name for name in names if names.count(name) > 1}:
        raise LadderError(
            f"{path} names {', '.join(sorted(twice))} twice; an entry needs one line."
        )
    first: dict[str, str] = {}
    return [
        entry._replace(trained_by=first.setdefault(write_gin(_trained(entry.settings)), entry.name))
        for entry in entries
    ]


def combinations(line: str) -> list[str]:
    """Returns the lines that a line with bindings of several values stands for; none if empty."""
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
    """Splits values at the commas outside of quotes and brackets."""
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
    # Without what evaluation alone reads; a plateau follows the evaluation.
    if settings.get("Trainer.plateau"):
        return settings
    evaluation = [name for name in settings if name.startswith("Evaluation.")]
    read = set().union(*(reachable(settings, name) for name in evaluation))
    alone = {name for name in read if name in evaluation or "/" in name}
    return {name: settings[name] for name in sorted(settings.keys() - alone)}


def _own(words, line, path):
    try:
        found = as_declared(read_gin("\n".join(words)))
    except SyntaxError as error:
        raise LadderError(
            f"{path}: {line.strip()!r} is not a config and bindings NAME=VALUE without spaces."
        ) from error
    if len(found) < len(words):
        raise LadderError(f"{path}: {line.strip()!r} binds one name twice: leave one out.")
    return found


def _often(steps):
    """Curves of fifty points, and at most a tenth of a run to repeat after a kill."""
    often = {"log_every": 50, "eval_every": 5}
    found = {f"Trainer.{name}": max(steps // parts, 1) for name, parts in often.items()}
    return found | {"CheckpointPolicy.every": max(steps // 10, 1)}


def _warmup(settings, steps, own):
    """Returns a shorter warm-up where the run would end before it; `own` bindings stay."""
    schedule = str(settings.get("Trainer.schedule", "")).strip("@()").rpartition("/")[2]
    name, function = f"{schedule}.warmup_steps", getattr(schedules, schedule, None)
    if function is None or name in own:
        return {}
    usual = inspect.signature(function).parameters["warmup_steps"].default
    return {name: steps // 10} if (settings.get(name, usual) or 0) >= steps else {}


def _read(config, path):
    settings: dict[str, Any] = {}
    for file in split_files(config):
        folders = (Path(path).parent, Path(), Path("configs"), ROOT, ROOT / "configs")
        found = next((f / file for f in folders if os.path.isfile(f / file)), None)
        if not found:
            raise LadderError(f"{path} names {file}, which is neither beside it nor in configs/.")
        settings |= read_gin_file(found)
    return settings


def scaled(settings: dict, scale: Scale) -> dict:
    """The dimensions of a model at another scale.

    Layers beyond a multiple of twelve stay as many, as in Slide:13L; a recurrent or memorizing
    layer keeps its place in the stack. What a memory holds, and finds, shrinks as lengths do.
    """
    if scale == SCALES["paper"]:
        return {}
    for name in ("BlockRecurrentTransformer.width", "TransformerXL.width"):
        if settings.get(name, LEAST_WIDTH) < LEAST_WIDTH:
            raise LadderError(
                f"{name} = {settings[name]} is small already, and --scale would divide it once "
                "more: give --scale=paper, which leaves a config as it is."
            )
    if "TransformerXL.width" in settings:
        return _scaled_transformer_xl(settings, scale)
    if "BlockRecurrentTransformer.num_layers" not in settings:
        raise LadderError(
            f"--scale divides no dimensions of {model_name(settings)}: give --scale=paper, which "
            "leaves a config as it is."
        )
    divisors = {
        f"BlockRecurrentTransformer.{name}": getattr(scale, name)
        for name in ("width", "num_heads", "head_size", "feed_forward_size")
    }
    lengths = (
        "BlockRecurrentTransformer.window",
        "Trainer.segment_length",
        "RecurrentCell.num_states",
    )
    memory = "ExternalMemory.size", "ExternalMemory.neighbours"
    divisors |= dict.fromkeys([*lengths, *memory], scale.lengths)
    found = {}
    for name, divisor in divisors.items():
        if name in settings:
            found[name], rest = divmod(settings[name], divisor)
            if rest or not found[name]:
                raise LadderError(
                    f"{name} = {settings[name]} cannot be divided by {divisor}: choose a scale "
                    "that divides it."
                )
    times, more = divmod(settings["BlockRecurrentTransformer.num_layers"], 12)
    layers = found["BlockRecurrentTransformer.num_layers"] = scale.layers * times + more
    ratio = layers / settings["BlockRecurrentTransformer.num_layers"]
    for name in (
        "BlockRecurrentTransformer.recurrent_layers",
        "BlockRecurrentTransformer.memorizing_layers",
    ):
        if not (indices := settings.get(name)):
            continue
        places = tuple(max(round((index + 1) * ratio), 1) - 1 for index in indices)
        if len(set(places)) < len(places):
            raise LadderError(
                f"{name} = {indices} falls together in {layers} layers: choose a larger scale."
            )
        found[name] = places
    found["BlockRecurrentTransformer.activation_dtype"] = "float32"
    return found


def _scaled_transformer_xl(settings, scale):
    # Sizes such as 410 and 41 are rounded up to even ones; lengths are short as they are.
    found = {}
    for name in ("width", "head_size", "feed_forward_size"):
        even = -(-settings[f"TransformerXL.{name}"] // (2 * getattr(scale, name)))
        found[f"TransformerXL.{name}"] = 2 * even
    heads, layers = (settings[f"TransformerXL.{name}"] for name in ("num_heads", "num_layers"))
    found["TransformerXL.num_heads"] = max(heads // scale.num_heads, 1)
    found["TransformerXL.num_layers"] = max(round(layers * scale.layers / 12), 1)
    found["TransformerXL.activation_dtype"] = "float32"
    return found


def with_corpus(settings: dict, corpus: dict) -> dict:
    """The settings with all that belongs to their corpus replaced by that of other bindings.

    Args:
        settings: of an experiment, without macros.
        corpus: bindings of a corpus; its macro `vocabulary_size` becomes the model's.
    """
    old = reachable(settings, "Trainer.corpus")
    kept = {name: value for name, value in settings.items() if name not in old}
    both = kept | {"Trainer.corpus": Reference("@Corpus()")} | corpus
    new = reachable(both, "Trainer.corpus")
    own = {name: both[name] for name in both if name in new}
    *_, table = (f"{owner}.vocabulary_size" for owner in owners(settings))
    if isinstance(size := corpus.get("vocabulary_size"), int):
        own[table] = size
    elif named := [name for name in corpus if name.endswith(".vocabulary_size")]:
        own[table] = corpus[named[0]]
    elif str(own.get("Corpus.vocabulary")) in ("bytes", "@ByteVocabulary()"):
        own[table] = 256
    elif size:  # a reference: it follows from the vocabulary
        own[table] = named_vocabulary(own["Corpus.vocabulary"]).size
    if cutoffs := kept.get("TransformerXL.cutoffs"):
        # Bins of the adaptive softmax end below the new vocabulary's size.
        own["TransformerXL.cutoffs"] = tuple(c for c in cutoffs if c < own.get(table, kept[table]))
    return kept | own
