"""Tables and figures of improvements, and names of groups of runs."""

from collections.abc import Callable, Iterable, Sequence

from results_page.gains import SPLIT, Gain, in_training, known, num_states, rate, regime

from brt.reporting.collect import Group
from brt.reporting.drawing.plots import Line, Plot
from brt.reporting.drawing.rounding import mean_and_spread
from brt.reporting.drawing.table import Cell, Table, measured, plain_table
from brt.reporting.model_settings import model_setting

DECIMALS = 4
NOTHING = Cell("–")
USUAL = {
    "Trainer.clear_state": False,
    "RecurrentCell.gate_biases": "small",
    "RecurrentCell.order": "parallel",
    "TransformerXL.encoding": "relative",
    "TransformerXL.memory": "HiddenMemory",
    "TransformerXL.norm": "post",
}
"""Settings that are named only where they differ."""


def gain_table(name: str, found: Iterable[Gain]) -> Table:
    """Returns one row a recurrent group: bits per byte, mean and spread over seeds."""
    titles = ("corpus", "window", "segment", "steps", "tokens", "system", "beside", "states",
              "optimizer, rates", "seeds", "beside it", "recurrent", "state cleared", "gain",
              "worth of the state")  # fmt: skip
    rows = []
    for gain in found:
        own, group = gain.regime, gain.recurrent
        rates = f"{_rate(gain.plain)}; {_rate(group)}" if gain.plain else _rate(group)
        rates = f"{own.optimizer} {rates}"
        texts = (own.corpus, own.window, own.segment_length, f"{own.steps:,}", _tokens(own),
                 system(group), system(gain.plain) if gain.plain else "–", num_states(group),
                 rates, len(known(group)))  # fmt: skip
        numbers = gain.plain_bits, known(group), known(group, "cleared_"), gain.gains, gain.worth
        rows.append([*texts, *map(shown, numbers)])
    caption = (
        f"Bits per byte, all of the {SPLIT} split; ± is the deviation over seeds, rounded up. "
        "Beside: the best plain stack of one layer more with this window and optimizer, same "
        "seeds, same tokens in the same order. Gain: over it. Worth: what clearing the state "
        "costs. Rates: of both sides."
    )
    return plain_table(name, "Recurrent beside plain", caption, titles, rows)


def runs_table(name: str, groups: Iterable[Group]) -> Table:
    """Returns all groups with their learning rate and final loss."""
    titles = ("corpus", "window", "segment", "steps", "system", "states", "rate", "seeds",
              "bits/byte", "state cleared", "on")  # fmt: skip
    rows = []
    for group in groups:
        own = regime(group)
        found = known(group), known(group, "cleared_")
        where = SPLIT
        if not found[0]:
            found = in_training(group), in_training(group, "cleared_")
            ended = all(run.finished for run in group.runs)
            where = f"part of {SPLIT}" if found[0] else "not evaluated" if ended else "not finished"
        texts = (own.corpus, own.window or "–", own.segment_length, f"{own.steps:,}",
                 system(group), num_states(group) or "–", _rate(group),
                 len(found[0]) or len(group.runs))  # fmt: skip
        rows.append([*texts, *map(shown, found), where])
    caption = "Every run; ± is the deviation over seeds, rounded up."
    return plain_table(name, "Every run", caption, titles, rows)


def system(group: Group) -> str:
    """Returns a group's system with its layers: `Slide:4L`, `Rec:fixed:skip:3L, layer 3`.

    A scaled model has the published name: `Slide:13L`. Other differences are appended.
    """
    text, layers = group.position.system, f":{group.position.layers}L"
    if group.position.layers == model_setting(group.runs[0].settings, "num_layers"):
        text += "" if text.endswith(layers) else layers
        found = group.runs[0].settings.get("BlockRecurrentTransformer.recurrent_layers", ())
        text += f", layer {' and '.join(str(layer + 1) for layer in found)}" if found else ""
    for name, usual in USUAL.items():
        value = group.runs[0].settings.get(name, usual)
        value = value.strip("@()") if isinstance(value, str) else value
        text += "" if value == usual else f", {name.split('.')[1]} = {value}"
    return text


def told_apart(groups: Sequence[Group], but: str = "") -> list[str]:
    """Returns a distinct name for each group.

    but: setting that is not named because it is the x axis: "window", "steps" or "states".
    """
    same = len({num_states(group) for group in groups}) == 1
    parts = {
        "corpus": lambda group: regime(group).corpus,
        "window": lambda group: f"W {regime(group).window}",
        "steps": lambda group: f"{regime(group).steps:,} steps",
        # As many states as a window has tokens are told by the window.
        "states": lambda group: (
            "" if same or num_states(group) == regime(group).window else f"S {num_states(group)}"
        ),
    }
    differing = [
        part
        for name, part in parts.items()
        if name != but and len({part(group) for group in groups}) > 1
    ]
    return [
        " ".join(filter(None, (system(group), *(part(group) for part in differing))))
        for group in groups
    ]


def shown(values: Sequence[float]) -> Cell:
    """Returns mean and spread of values; a dash for none."""
    return measured(values, DECIMALS) if values else NOTHING


def _rate(group):
    found = rate(group)
    return "–" if found is None else f"{found:g}"


def _tokens(regime):
    return f"{regime.steps * regime.tokens_per_step / 1e6:.1f} M"


def gain_plot(
    name: str,
    x_label: str,
    found: Iterable[Gain],
    x: Callable[[Gain], float],
    names: Sequence[str],
) -> Plot | None:
    """Returns improvements over x, with the spread over seeds; None if all have one x.

    Args:
        x: from an improvement to its x.
        names: of the lines that the improvements belong to.
    """
    lines: dict[str, list[tuple[float, float, float]]] = {}
    for gain, line in zip(found, names):
        for what, values in (("over plain", gain.gains), ("over state cleared", gain.worth)):
            if values:
                mean, spread = mean_and_spread(values)
                lines.setdefault(f"{line} {what}", []).append((x(gain), mean, spread or 0.0))
    drawn = []
    for text, points in lines.items():
        xs, ys, errors = zip(*sorted(points))
        drawn.append(Line(text, xs, ys, "points", errors=errors))
    at = {x for one in drawn for x in one.x}
    if len(at) < 2:
        return None
    caption = "Bits per byte by which the recurrent runs are better; the band is the spread."
    title = f"Gain of recurrence over {x_label}"
    return Plot(name, title, caption, x_label, "gain, bits per byte", drawn,
                log_x=min(at) > 0)  # fmt: skip
