"""Settings that differ between a run and a published number; the latter's are those of its paper,
otherwise brt's defaults.
"""

from collections.abc import Collection
from pathlib import PurePath

from brt.bindings.gin_files import ReferenceText
from brt.bindings.registry import default
from brt.reporting.gin_text import reachable
from brt.reporting.model_settings import model_setting, owners
from brt.reporting.paper_positions import SETTINGS, PaperPosition
from brt.reporting.papers.published_tables import NOT_PUBLISHED
from brt.reporting.runs import Run
from brt.training.resume import EVALUATION, EXECUTION

OF_RULES = {name: setting for name, (setting, _) in SETTINGS.items() if name != "steps"}
OF_RULES |= {"window_length": "Trainer.segment_length", "vocabulary": "vocabulary"}
"""Settings that a rule fixes by an attribute of a `PaperPosition`."""

OF_POSITION = """Trainer.model: RecurrentCell.gate: RecurrentCell.arrangement:
BlockRecurrentTransformer.feedback: ExternalMemory.size: RecurrentMemoryTransformer.num_memory:
RecurrentMemoryTransformer.memory_at_end: TransformerXL.cutoffs: TransformerXL.position_rows:
LSTM.cutoffs: QRNN.cutoffs:"""
"""System and size of a position, which the rules of all compared rows contain."""
WITHOUT_EFFECT = """Trainer.corpus: Trainer.seed: Trainer.skip_nonfinite: Trainer.remat_segments:
BlockRecurrentTransformer.remat: TransformerXL.remat:
RecurrentMemoryTransformer.allow_long_memory:"""
# The evaluation has its own note.
NOT_COMPARED = (*OF_POSITION.split(), *WITHOUT_EFFECT.split(), *EXECUTION, *EVALUATION)
FOLDER = "Pretrained.folder"
PATHS = (FOLDER, "Hyperpartisan.split_file")
"""Bindings compared by the last part of a path."""
CHOSEN = "Trainer.optimizer", "Trainer.schedule"
"""Bindings to functions, whose bindings are compared only if the functions are equal."""


def differences(
    run: Run, position: PaperPosition, published: dict, decided: Collection[str] = ()
) -> list[str]:
    """Returns a phrase for each setting that differs: `Trainer.steps = 1,000 for 500,000`.

    A scaled run has the dimensions of the published model, and its own steps. The corpus is
    compared only if it is published.

    decided: attributes of a `PaperPosition` in the rule of the row.
    """
    settings = run.paper_settings | {"vocabulary": position.vocabulary}
    settings["Trainer.steps"] = run.settings.get("Trainer.steps")
    folder = settings[FOLDER] = model_setting(settings, "folder") or settings.get(FOLDER)
    settings |= {name: PurePath(settings[name]).name for name in PATHS if settings.get(name)}
    body = f"{owners(settings)[-1]}."
    if "steps" in decided:
        published = published | {"Trainer.steps": position.steps}
    skipped = reachable(run.settings, "Trainer.corpus")
    # Vocabularies are compared by name and size.
    skipped |= {name for name in settings if name.partition(".")[0].endswith("Vocabulary")}
    skipped |= {name for name in settings if name.endswith(".folder")} - {FOLDER}
    skipped -= published.keys()
    fixed = {OF_RULES[attribute] for attribute in decided if attribute in OF_RULES}
    skipped |= {name for name in {*published, *settings} if {name, name.rpartition(".")[2]} & fixed}
    phrases = []
    for name in dict.fromkeys([*CHOSEN, *published, *settings]):
        free = f"{name}:".startswith(NOT_COMPARED) or "/" in name
        if name in skipped or (free and name not in published):
            continue
        expected = published.get(name, _default(name))
        value = settings.get(name, _default(name))
        if expected is NOT_PUBLISHED or _shown(value) == _shown(expected):
            continue
        if folder and value is None and name.startswith(body):
            continue  # as in its folder, whose name is compared
        own = ""
        if name in CHOSEN:
            both = [_shown(function).strip("@") for function in (value, expected)]
            own = _with(settings, both[0])
            skipped |= {n for n in {*published, *settings} if n.partition(".")[0] in both}
        elif name == FOLDER and value is None:
            own = " (random parameters)"
        phrases.append(f"{name} = {_shown(value)}{own} for {_shown(expected)}")
    return phrases


def _with(settings, function):
    bound = {name: value for name, value in settings.items() if name.startswith(f"{function}.")}
    shown = (f"{name.partition('.')[2]} {_shown(value)}" for name, value in bound.items())
    return f" ({', '.join(shown)})" if bound else ""


def _default(name):
    return NOT_PUBLISHED if "." not in name else default(name)


def _shown(value):
    if isinstance(value, ReferenceText) or callable(value):
        text = value.strip("@()") if isinstance(value, ReferenceText) else value.__name__
        return "@" + text.rsplit("/", 1)[-1].rsplit(".", 1)[-1]
    if value is NOT_PUBLISHED:
        return "nothing"
    if isinstance(value, list | tuple):
        return repr(tuple(value))
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return repr(value)
