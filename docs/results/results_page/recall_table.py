"""Recall of pairs (MQAR) by every memory, compared with the bytes that each carries."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from results_page.gain_tables import NOTHING

from brt.reporting.collect import Group
from brt.reporting.drawing.plots import Line, Plot
from brt.reporting.drawing.table import Cell, Table, plain_table
from brt.reporting.model_settings import model_name, model_setting

TRAINED, PAIRS = 64, (2, 4, 8, 16)
"""Tokens of the longest documents in training, and numbers of pairs."""
LONGER = (1_024, 16_384)
"""Tokens of the longer documents of the test."""
MODELS = {
    "RecurrentMemoryTransformer": "RMT",
    "AssociativeRecurrentMemoryTransformer": "ARMT",
    "Melodi": "MELODI",
}
MEMORIES = {
    "GatedDeltaMemory": "gated delta memory",
    "AssociativeMemory": "associative memory",
    "CompressiveMemory": "Compressive Transformer",
    "ExternalMemory": "Memorizing Transformer",
}


class Recall(NamedTuple):
    """A group of runs of one memory: carried bytes, and accuracies of each run."""

    memory: str
    carried_bytes: int
    in_training: list[float]
    by_length: list[dict[str, dict[float, float]]]

    def at(self, facts: int, length: int) -> list[float]:
        curves = (run.get(f"state kept, {facts} facts, by length", {}) for run in self.by_length)
        return [curve[length] for curve in curves if length in curve]


def recalls(groups: Iterable[Group]) -> list[Recall]:
    """Returns the groups with the study `answers`, the one that carries least first."""
    found = []
    for group in groups:
        studies = [run.studies["answers"] for run in group.runs if "answers" in run.studies]
        if studies:
            series = [
                {s["name"]: dict(zip(s["x"], s["y"])) for s in study["series"]} for study in studies
            ]
            carried = int(studies[0]["numbers"]["carried_bytes"])
            known = [e["answer_accuracy"] for e in group.evaluations("validation")]
            found.append(Recall(memory(group.runs[0].settings), carried, known, series))
    return sorted(found, key=lambda recall: recall.carried_bytes)


def memory(settings: dict[str, Any]) -> str:
    """Returns what a model carries from segment to segment."""
    model = model_name(settings)
    if model in MODELS:
        return MODELS[model]
    bound = " ".join(str(settings.get(name)) for name in settings if name.endswith("memories"))
    bound += str(model_setting(settings, "memory", ""))
    if model_setting(settings, "memorizing_layers", ()):
        bound += "ExternalMemory"
    for name, label in MEMORIES.items():
        if name in bound:
            return label
    if model == "TransformerXL":
        return "Transformer-XL"
    if model_setting(settings, "recurrent_layers", ()):
        feedback = ", feedback" if model_setting(settings, "feedback", False) else ""
        return f"Rec, {settings['RecurrentCell.gate'].strip(chr(34))} gate{feedback}"
    return "window (Slide)"


def recall_table(name: str, groups: Iterable[Group]) -> Table | None:
    """Returns one row a memory and size, those that carry least first."""
    rows: list[Sequence[Any]] = []
    for recall in recalls(groups):
        by_pairs = [recall.at(facts, TRAINED) for facts in PAIRS]
        by_length = [recall.at(PAIRS[-1], length) for length in LONGER]
        cells = map(_by_seed, [recall.in_training, *by_pairs, *by_length])
        rows.append([recall.memory, f"{recall.carried_bytes:,}", *cells])
    titles = ["memory", "bytes carried", "all", *(f"{n} pairs" for n in PAIRS),
              *(f"{n:,} tokens" for n in LONGER)]  # fmt: skip
    caption = (
        "Share of queries answered with the right value, one number a seed. All: documents as in "
        f"training, 2 to 16 pairs in 16 to {TRAINED} tokens; then documents of {TRAINED} tokens by "
        f"their pairs, and longer documents, with {PAIRS[-1]} pairs, than training has. "
        "Chance: 0.03."
    )
    return plain_table(name, "Pairs recalled", caption, titles, rows) if rows else None


def _by_seed(values: Sequence[float]) -> Cell:
    return Cell(" / ".join(f"{value:.2f}" for value in values)) if values else NOTHING


def recall_plot(name: str, groups: Iterable[Group]) -> Plot | None:
    """Returns the share recalled against the distance, one line a memory and size."""
    lines = []
    for recall in recalls(groups):
        best = max(range(len(recall.in_training)), key=recall.in_training.__getitem__, default=0)
        curve = recall.by_length[best].get("state kept, by distance", {})
        label = f"{recall.memory}, {recall.carried_bytes:,} bytes"
        lines.append(Line(label, list(curve), list(curve.values()), "points"))
    if not lines:
        return None
    return Plot(
        name,
        "Pairs recalled, by distance",
        f"Share of queries for 2 to {PAIRS[-1]} pairs that are answered with the right value, by "
        f"the tokens since the pair (from powers of two), in documents of {TRAINED} to "
        f"{LONGER[-1]:,} tokens. The best seed of each memory. Training has distances up to "
        f"{TRAINED}.",
        "distance, tokens",
        "share answered",
        lines,
        log_x=True,
        y_range=(0.0, 1.02),
    )
