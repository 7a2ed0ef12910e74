"""The figures of a report: curves of training, Figures 3 and 7, and the series of studies."""

import re

from brt import config
from brt.experiment import Experiment
from brt.models.counts import count_parameters
from brt.reporting import published as paper
from brt.reporting.collect import Group
from brt.reporting.paper_tables import scaling_groups
from brt.reporting.plots import Line, Plot
from brt.reporting.runs import Run

CURVES = (
    (
        "training_loss",
        "Loss in training",
        "Bits per token of the batches read since the last point; below an evaluation's curve "
        "where the training text is easier, or learned by heart.",
        "bits per token",
        r"train/bits_per_token",
    ),
    (
        "evaluation_loss",
        "Loss on held-out text",
        "Evaluations during training, of a part of the split. `cleared` repeats each with the "
        "state cleared at every segment: the distance between the two is what the state is worth.",
        "bits per token",
        r"eval/(cleared_)?bits_per_token",
    ),
    (
        "recall",
        "Recall",
        "Share of questions answered right: facts farther back than attention reaches.",
        "accuracy",
        r"eval/(cleared_)?recall_accuracy(_near|_across_segments)?",
    ),
    (
        "kept",
        "Gates: share of the state kept at a block border",
        "Near 1 the state changes slowly and remembers for long, near 0 it is overwritten.",
        "kept",
        r"train/layer\d+/kept",
    ),
    (
        "state_share",
        "Share of attention's output that comes from the states",
        "Near 0 a state is ignored, the known failure of recurrence.",
        "share",
        r"train/layer\d+/state_share",
    ),
    (
        "state_norm",
        "Norm of the states",
        "Root mean square of the state vectors; it should settle.",
        "norm",
        r"train/layer\d+/state_norm",
    ),
    (
        "gradient_norm",
        "Norm of the gradient, and of its part in the recurrent cell",
        "A cell whose gradient is next to nothing is not being trained.",
        "norm",
        r"train/(layer\d+/cell_)?grad_norm",
    ),
    (
        "learning_rate",
        "Learning rate",
        "Of the next step.",
        "learning rate",
        r"train/learning_rate",
    ),
    (
        "speed",
        "Speed",
        "Tokens a second over all devices; dips are another program's work, or waiting for data.",
        "tokens per second",
        r"perf/tokens_per_second",
    ),
)
"""Name, title, caption, axis and the scalars of each figure."""


def training_curves(runs: list[Run]) -> list[Plot]:
    """The curves for which some run has numbers, all runs together."""
    plots = []
    for name, title, caption, label, pattern in CURVES:
        lines = []
        for run in runs:
            scalars = {scalar for record in run.records for scalar in record}
            for scalar in sorted(s for s in scalars if re.fullmatch(pattern, s)):
                steps, values = run.series(scalar)
                if steps:
                    text = f"{run.name} {_short(scalar, name)}".strip()
                    style = "points" if len(steps) < 30 else "line"
                    lines.append(Line(text, steps, values, style))
        if lines:
            plots.append(Plot(name, title, caption, "step", label, lines))
    return plots


def _short(scalar, figure):
    """What tells a scalar from the others of its figure: `layer2`, `cleared`."""
    text = scalar.split("/", 1)[1]
    for word in ("bits_per_token", "recall_accuracy", "learning_rate", "tokens_per_second", figure):
        text = text.replace(word, "")
    return text.strip("_/").replace("_", " ").replace("/", " ")


def scaling_plot(groups: list[Group]) -> Plot:
    """Figure 3: bits per token against parameters."""
    lines = []
    for name, field in zip(paper.TABLE_4_ROWS, ("recurrent", "baseline")):
        printed = [paper.number(getattr(size, field)) for size in paper.TABLE_4]
        millions = [size.millions for size in paper.TABLE_4]
        lines.append(Line(f"{name}, paper", millions, printed, "published"))
    for name in paper.TABLE_4_ROWS:
        points: dict[str, list] = {}
        for size in paper.TABLE_4:
            for group in scaling_groups(groups, name, size):
                if values := group.cell().values:
                    point = _millions(group.runs[0]), sum(values) / len(values)
                    points.setdefault(group.place.corpus, []).append(point)
        for corpus, found in points.items():
            lines.append(Line(f"{name}, {corpus}", *map(list, zip(*sorted(found))), "points"))
    return Plot(
        "figure_3",
        "Figure 3: scaling",
        "Bits per token against parameters in millions (measured: without embeddings), "
        "logarithmic. Where the lower curve lies left of the upper one by a factor of two, "
        f"recurrence is worth twice the parameters. Source: {paper.PAPER}, Figure 3 and Table 4.",
        "parameters, millions",
        "bits per token",
        lines,
        log_x=True,
    )


def _millions(run):
    config.parse([str(run.folder / "config.gin")])
    return count_parameters(Experiment.from_gin().abstract_params).non_embedding / 1e6


def vocabulary_plot(groups: list[Group]) -> Plot:
    """Figure 7: scale factor and bits per token against the size of the vocabulary."""
    rows = {
        paper.vocabulary_entries(r.size): r for r in paper.TABLE_5 if r.vocabulary == "PG19 SPM"
    }
    sizes = sorted(rows)
    lines = [
        Line(
            "bits/token, paper", sizes, [float(rows[s].bits_per_token) for s in sizes], "published"
        ),
        Line(
            "tokens/word, paper",
            sizes,
            [float(rows[s].scale_factor) for s in sizes],
            "published",
            True,
        ),
    ]
    points: dict[str, dict[int, tuple]] = {}
    for group in groups:
        if group.place.system != "Rec:fixed:skip" or "sentencepiece" not in _kind(group):
            continue
        bits, words = group.cell().values, group.cell("tokens_per_word").values
        if bits and words:
            size = group.runs[0].settings["LanguageModel.vocabulary_size"]
            found = points.setdefault(group.place.corpus.rstrip("0123456789k"), {})
            found[size] = sum(bits) / len(bits), sum(words) / len(words)
    for corpus, found in points.items():
        x = sorted(found)
        lines.append(Line(f"bits/token, {corpus}", x, [found[s][0] for s in x], "points"))
        lines.append(Line(f"tokens/word, {corpus}", x, [found[s][1] for s in x], "points", True))
    return Plot(
        "figure_7",
        "Figure 7: size of the vocabulary",
        "SentencePiece vocabularies: a larger one needs fewer tokens a word (right axis), and more "
        f"bits for each (left). Source: {paper.PAPER}, Figure 7 and Table 5.",
        "vocabulary, entries",
        "bits per token",
        lines,
        log_x=True,
        second_label="tokens per word",
    )


def _kind(group):
    name = str(group.runs[0].settings.get("Corpus.vocabulary"))
    return "sentencepiece" if name.endswith(".model") or "entencePiece" in name else name


STUDIES = {
    "compare": "Above zero the run predicts better than what it is compared with; in Figures 4 and "
    "5 of the paper the spikes are names. Thin lines: segment borders.",
    "positions": "As Figure 6 of the paper: a model that uses its memory goes on falling where the "
    "other is level.",
    "reach": "What is lost when the memory is reset so long before the scored tokens: where the "
    "curve meets zero the memory ends.",
    "memory_use": "What is lost when the state is taken away; zero in the first segment.",
}
"""What to look at in the plots of each study."""


def study_plots(run: Run, name: str) -> list[Plot]:
    """The series of a study; those with the same axes and borders share a plot.

    Counts of documents go to the axis on the right of the plot with the same x.
    """
    together: dict[tuple, list] = {}
    for series in run.studies[name].get("series", []):
        if len(series.get("x", [])) != len(series.get("y", [])):
            run.problems.append(f"{run.folder}/studies/{name}.json: a series has no y for each x")
            continue
        borders = tuple(series.get("borders") or ())
        key = series.get("x_label", ""), series.get("y_label", ""), borders
        together.setdefault(key, []).append(series)
    counts = [key for key in together if key[1].startswith("documents")]
    plots = []
    for key, group in together.items():
        x_label, y_label, borders = key
        beside = [c for c in counts if c[0] == x_label]
        if key in counts and any(other[0] == x_label for other in together if other != key):
            continue
        lines = [Line(series.get("name", ""), series["x"], series["y"]) for series in group]
        for count in beside if key not in counts else ():
            lines += [Line(s["name"], s["x"], s["y"], "line", True) for s in together[count]]
        plots.append(
            Plot(
                re.sub(r"\W+", "_", f"{name}_{run.name}_{len(plots) + 1}"),
                group[0].get("name", name) if len(group) == 1 else f"{y_label} by {x_label}",
                STUDIES.get(run.studies[name].get("study"), ""),
                x_label,
                y_label,
                lines,
                log_x=all(_spread_out(series["x"]) for series in group),
                borders=borders,
                second_label=beside[0][1] if beside and key not in counts else "",
            )
        )
    return plots


def _spread_out(x):
    """Whether few points cover so much that only a logarithmic axis tells them apart."""
    return 1 < len(x) <= 40 and min(x) > 0 and max(x) / min(x) >= 64
