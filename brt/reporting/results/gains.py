"""What recurrence is worth: recurrent runs beside plain ones that read the same tokens.

A pair is a recurrent run and a plain one of one seed, whose records say by their hash of the
data that they read the same tokens in the same order.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from brt.reporting.collect import Group
from brt.reporting.drawing.plots import Line, Plot
from brt.reporting.drawing.rounding import mean_and_spread
from brt.reporting.drawing.table import Cell, Column, Table, measured
from brt.reporting.model_settings import model_setting
from brt.reporting.runs import Run

SPLIT = "validation"
"""On which everything is chosen and compared."""
DECIMALS = 4
PLAIN = ("Slide", "XL")
"""How the systems are called that a recurrent one is compared with."""
NOTHING = Cell("–")


class Regime(NamedTuple):
    """What both sides of a comparison share.

    corpus: name of the store's folder. vocabulary: with its size. window, segment_length, and
    tokens_per_step in tokens; steps.
    """

    corpus: str
    vocabulary: str
    window: int | None
    segment_length: int
    tokens_per_step: int
    steps: int


class Gain(NamedTuple):
    """A recurrent group beside the best plain group of its regime.

    Attributes:
        regime: of both.
        recurrent: runs that differ in their seed only.
        plain: likewise, of the lowest mean among those that share a seed with it; None where
            none was run.
        gains: bits per byte by which the recurrent run is better, one a seed of both.
        worth: bits per byte that clearing the state costs the recurrent runs, one a seed.
    """

    regime: Regime
    recurrent: Group
    plain: Group | None
    gains: tuple[float, ...]
    worth: tuple[float, ...]


def regime(group: Group) -> Regime:
    """Returns the regime of a group, at its own scale."""
    settings = group.runs[0].settings
    return Regime(
        group.position.corpus,
        group.position.vocabulary,
        model_setting(settings, "window"),
        settings["Trainer.segment_length"],
        settings["Trainer.tokens_per_step"],
        settings["Trainer.steps"],
    )


def num_states(group: Group) -> int:
    """Returns S of a group's own model, at its own scale; 0 without a recurrent layer."""
    settings = group.runs[0].settings
    return settings.get("RecurrentCell.num_states", 0) if group.position.states else 0


def bits(run: Run, prefix: str = "") -> float | None:
    """Returns bits per byte on the whole split; None before its evaluation after the last step.

    prefix: "cleared_" for those with the state cleared at every segment.
    """
    found = run.evaluations.get(SPLIT, {})
    if found.get("step", 0) < run.settings.get("Trainer.steps", 0):
        return None
    return found.get(f"{prefix}bits_per_byte")


def rate(group: Group) -> float | None:
    """Returns the highest training rate of a group's schedule; None of other schedules."""
    return group.runs[0].settings.get("cosine.maximum")


def read_the_same(run: Run, other: Run) -> bool:
    """Tells if two runs read the same tokens in the same order, by the hash of their records."""
    ledgers = [
        {record["step"]: record["data/ledger"] for record in one.records if "data/ledger" in record}
        for one in (run, other)
    ]
    shared = set(ledgers[0]) & set(ledgers[1])
    return bool(shared) and all(ledgers[0][step] == ledgers[1][step] for step in shared)


def gains(groups: Iterable[Group]) -> list[Gain]:
    """Returns a `Gain` for each recurrent group that was evaluated, ordered by regime."""
    evaluated = [group for group in groups if any(bits(run) is not None for run in group.runs)]
    plain = [group for group in evaluated if group.position.system.startswith(PLAIN)]
    found = []
    for group in evaluated:
        if not group.position.states:
            continue
        best: tuple[float, Group, tuple[float, ...]] | None = None
        for other in plain:
            if regime(other) != regime(group):
                continue
            both = paired(group, other)
            if not both:
                continue
            mean, _ = mean_and_spread(known(other))
            if best is None or mean < best[0]:
                best = mean, other, both
        _, other_group, both = best or (0.0, None, ())
        found.append(Gain(regime(group), group, other_group, both, worth(group)))
    return sorted(found, key=lambda gain: tuple(map(str, gain.regime[:2])) + gain.regime[2:])


def paired(group: Group, other: Group) -> tuple[float, ...]:
    """Returns by how many bits per byte each run of a group is better than its pair of another."""
    return tuple(
        its - own
        for run, plain in pairs(group, other)
        if (own := bits(run)) is not None and (its := bits(plain)) is not None
    )


def pairs(group: Group, other: Group) -> Iterator[tuple[Run, Run]]:
    """Yields runs of two groups that have one seed and read the same tokens."""
    for run in group.runs:
        for plain in other.runs:
            seeds = {one.settings.get("Trainer.seed", 0) for one in (run, plain)}
            if len(seeds) == 1 and read_the_same(run, plain):
                yield run, plain


def worth(group: Group) -> tuple[float, ...]:
    """Returns the bits per byte that clearing the state costs each run of a group."""
    return tuple(
        cleared - kept
        for run in group.runs
        if (kept := bits(run)) is not None and (cleared := bits(run, "cleared_")) is not None
    )


def known(group: Group, prefix: str = "") -> list[float]:
    """Returns the bits per byte of the runs of a group that were evaluated."""
    return [value for run in group.runs if (value := bits(run, prefix)) is not None]


def gain_table(name: str, found: Iterable[Gain]) -> Table:
    """Returns a table with one row a recurrent group: bits per byte, mean and spread over seeds."""
    titles = ("corpus", "window", "segment", "steps", "tokens", "system", "states",
              "rates", "seeds")  # fmt: skip
    columns = [Column("", title) for title in titles]
    columns += [Column("", title) for title in ("plain", "recurrent", "state cleared")]
    columns += [Column("", title) for title in ("gain over plain", "worth of the state")]
    rows = []
    for gain in found:
        own, group = gain.regime, gain.recurrent
        rates = f"{_rate(gain.plain)}; {_rate(group)}" if gain.plain else _rate(group)
        texts = (own.corpus, own.window, own.segment_length, f"{own.steps:,}", _tokens(own),
                 system(group), num_states(group), rates, len(known(group)))  # fmt: skip
        plain = measured(known(gain.plain), DECIMALS) if gain.plain else NOTHING
        numbers = known(group), known(group, "cleared_"), gain.gains, gain.worth
        cells = [measured(values, DECIMALS) if values else NOTHING for values in numbers]
        rows.append([*(Cell(str(text)) for text in texts), plain, *cells])
    caption = (
        f"Bits per byte, every byte of the {SPLIT} split once; ± is the standard deviation over "
        "seeds, rounded up. Plain: of the stacks with this window, that of the lowest mean. Gain: "
        "how much lower the recurrent runs are, seed by seed, after the same tokens in the same "
        "order. Worth: what clearing the state at every segment costs them. Rates: of both."
    )
    return Table(name, "Recurrent beside plain", caption, columns, rows)


def runs_table(name: str, groups: Iterable[Group]) -> Table:
    """Returns a table of all groups, each with its training rate and where it ended."""
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
            where = f"part of {SPLIT}" if found[0] else "no bytes" if ended else "not finished"
        texts = (own.corpus, own.window or "–", own.segment_length, f"{own.steps:,}",
                 system(group), num_states(group) or "–", _rate(group),
                 len(found[0]) or len(group.runs))  # fmt: skip
        cells = [measured(values, DECIMALS) if values else NOTHING for values in found]
        rows.append([*(Cell(str(text)) for text in texts), *cells, Cell(where)])
    caption = "Every run; ± is the standard deviation over seeds, rounded up."
    return Table(name, "Every run", caption, [Column("", title) for title in titles], rows)


def in_training(group: Group, prefix: str = "") -> list[float]:
    """Returns bits per byte of the evaluation after each run's last step, while it trained.

    Empty of other tokens than bytes, which are not counted there.
    """
    if group.position.vocabulary_family != "bytes":
        return []
    found = (run.series(f"eval/{prefix}bits_per_token") for run in group.runs)
    ends = (run.settings["Trainer.steps"] for run in group.runs)
    return [values[-1] for (steps, values), end in zip(found, ends) if steps and steps[-1] == end]


def system(group: Group) -> str:
    """Returns a group's system, with its layers: `Slide:4L`, `Rec:fixed:skip:3L, layer 3`.

    Of a smaller model that stands for a published one, that one's name alone: `Slide:13L`. What
    else sets it apart from others of its system and size stands after that.
    """
    text, layers = group.position.system, f":{group.position.layers}L"
    if group.position.layers == model_setting(group.runs[0].settings, "num_layers"):
        text += "" if text.endswith(layers) else layers
        found = group.runs[0].settings.get("BlockRecurrentTransformer.recurrent_layers", ())
        text += f", layer {' and '.join(str(layer + 1) for layer in found)}" if found else ""
    names = "Trainer.clear_state", "RecurrentCell.gate_biases", "RecurrentCell.order"
    others = (f", {name.split('.')[1]} = {group.runs[0].settings.get(name)}" for name in names)
    usual = {", clear_state = False", ", gate_biases = small", ", order = parallel"}
    return text + "".join(o for o in others if o not in usual and not o.endswith("None"))


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
    line: Callable[[Gain], str],
) -> Plot:
    """Returns a figure of gains over x: their means, and the spread over seeds as a band.

    Args:
        name, x_label: of the figure.
        found: those to draw; one without pairs has no gain over a plain stack.
        x: of a gain.
        line: names the line that a gain belongs to.
    """
    lines: dict[str, list[tuple[float, float, float]]] = {}
    for gain in found:
        for what, values in (("over plain", gain.gains), ("over state cleared", gain.worth)):
            if values:
                mean, spread = mean_and_spread(values)
                text = " ".join(filter(None, (line(gain), what)))
                lines.setdefault(text, []).append((x(gain), mean, spread or 0.0))
    drawn = []
    for text, points in lines.items():
        xs, ys, errors = zip(*sorted(points))
        drawn.append(Line(text, xs, ys, "points", errors=errors))
    at = {x for one in drawn for x in one.x}
    caption = "Bits per byte by which the recurrent runs are better; the band is the spread."
    title = f"Gain of recurrence over {x_label}"
    return Plot(name, title, caption, x_label, "gain, bits per byte", drawn,
                log_x=len(at) > 1 and min(at) > 0)  # fmt: skip
