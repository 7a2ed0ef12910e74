"""Tables of runs and of improvements; names of groups of runs."""

from collections.abc import Iterable, Sequence
from typing import Any

from results_page.gains import SPLIT, Gain, in_training, known, num_states, regime
from results_page.memory_names import memory_name

from brt.reporting.collect import Group
from brt.reporting.drawing.rounding import confidence_interval
from brt.reporting.drawing.table import Cell, Table, plain_table
from brt.reporting.model_settings import model_name, model_setting

NOTHING = Cell("–")
INTERVAL = "± is half of the 95 % interval over seeds (Student's t)."
TEXTS = {
    "code": "Python",
    "code_2000": "Python, 2,000 pieces",
    "latex": "LaTeX",
    "books_unwrapped": "books",
    "books_small": "books, lines wrapped",
    "unwrapped_bytes": "books",
}
"""Names of the corpora, in the order of the tables."""
USUAL = {
    "Trainer.clear_state": False,
    "RecurrentCell.gate_biases": "small",
    "RecurrentCell.order": "parallel",
    "TransformerXL.encoding": "relative",
    "TransformerXL.memory": "HiddenMemory",
    "TransformerXL.norm": "post",
}
"""Settings that are named only where they differ."""
NAMES = {"TransformerXL:7L, memory = CompressiveMemory": "Compressive:7L"}


def gain_table(name: str, found: Iterable[Gain]) -> Table:
    """Returns one row a recurrent group: bits per byte, and improvements over the baseline."""
    titles = ("text", "window", "segment", "steps", "optimizer", "system", "states", "seeds",
              "one more layer", "recurrent", "state cleared", "improvement",
              "on fresh text")  # fmt: skip
    rows = []
    for gain in found:
        own, group = gain.regime, gain.recurrent
        texts = (text(own.corpus), own.window, own.segment_length, f"{own.steps:,}", own.optimizer,
                 system(group), num_states(group), len(known(group)))  # fmt: skip
        numbers = gain.plain_bits, known(group), known(group, "cleared_"), gain.gains, gain.fresh
        rows.append([*texts, *map(shown, numbers)])
    caption = (
        f"Bits per byte on {SPLIT}. Improvement: over a plain stack of one more layer. {INTERVAL}"
    )
    return compact_table(name, "Recurrent and plain", caption, titles, rows)


def runs_table(name: str, groups: Iterable[Group]) -> Table | None:
    """Returns all evaluated groups with their learning rate and final loss."""
    titles = ("text", "window", "segment", "steps", "system", "states", "rate", "seeds",
              "bits per byte", "state cleared", "on")  # fmt: skip
    rows = []
    for group in groups:
        own = regime(group)
        found = known(group), known(group, "cleared_")
        where = SPLIT
        if not found[0]:
            found = in_training(group), in_training(group, "cleared_")
            where = f"part of {SPLIT}"
        if not found[0]:
            continue
        rate = group.runs[0].settings.get("cosine.maximum")
        texts = (text(own.corpus), own.window or "–", own.segment_length, f"{own.steps:,}",
                 system(group), num_states(group) or "–", "–" if rate is None else f"{rate:g}",
                 len(found[0]))  # fmt: skip
        rows.append([*texts, *map(shown, found), where])
    if not rows:
        return None
    return compact_table(name, "Every run", f"Bits per byte. {INTERVAL}", titles, rows)


def compact_table(
    name: str, title: str, caption: str, titles: Sequence[str], rows: Sequence[Sequence[Any]]
) -> Table:
    """Returns a table whose constant columns are said in the caption."""
    columns = list(zip(*rows))
    same = [len(rows) > 1 and len({getattr(cell, "text", cell) for cell in column}) == 1
            for column in columns]  # fmt: skip
    said = [f"{title} {getattr(column[0], 'text', column[0])}"
            for title, column, is_same in zip(titles, columns, same)
            if is_same and getattr(column[0], "text", column[0]) != "–"]  # fmt: skip
    kept = [number for number, is_same in enumerate(same) if not is_same]
    caption += f" All: {', '.join(said)}." if said else ""
    return plain_table(name, title, caption, [titles[number] for number in kept],
                       [[row[number] for number in kept] for row in rows])  # fmt: skip


def system(group: Group) -> str:
    """Returns a group's system with its layers: `Slide:4L`, `Rec:fixed:skip:3L, layer 3`.

    A scaled model has the published name: `Slide:13L`. Other differences are appended.
    """
    name, layers = _name(group), f":{group.position.layers}L"
    if group.position.layers == model_setting(group.runs[0].settings, "num_layers"):
        name += "" if name.endswith(layers) else layers
        found = group.runs[0].settings.get("BlockRecurrentTransformer.recurrent_layers", ())
        name += f", layer {' and '.join(str(layer + 1) for layer in found)}" if found else ""
    for setting, usual in USUAL.items():
        value = group.runs[0].settings.get(setting, usual)
        value = value.strip("@()") if isinstance(value, str) else value
        name += "" if value == usual else f", {setting.split('.')[1]} = {value}"
        name = NAMES.get(name, name)
    return name


def _name(group):
    settings, name = group.runs[0].settings, group.position.system
    return memory_name(settings) if name == model_name(settings) else name


def text(corpus: str) -> str:
    """Returns a corpus's name in tables."""
    return TEXTS.get(corpus, corpus)


def described(group: Group) -> str:
    """Returns a group's text, lengths and system: `Python, W 8, N 64, 3,000 steps, Slide:13L`."""
    own = regime(group)
    return (
        f"{text(own.corpus)}, W {own.window}, N {own.segment_length}, {own.steps:,} steps, "
        f"{_name(group)}"
    )


def probability(value: float | None) -> Cell:
    return NOTHING if value is None else Cell(f"{value:.3f}")


def shown(values: Sequence[float]) -> Cell:
    """Returns the mean of values and half of its interval; a dash for none."""
    if not values:
        return NOTHING
    if len(values) == 1:
        return Cell(f"{values[0]:.3f}", tuple(values))
    mean, half = confidence_interval(values)
    return Cell(f"{mean:.3f} ± {half:.3f}", tuple(values))
