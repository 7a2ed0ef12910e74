"""Where a run belongs in the paper's tables, read off its settings."""

import re
from typing import NamedTuple

from brt.reporting.published import TABLE_1, TABLE_4, Size
from brt.reporting.runs import Run

STANDARD = TABLE_4[2]
"""The size of all other tables: 12 layers, d 1024 (section 4.1)."""
STANDARD_STATES = 512


class Place(NamedTuple):
    """A run in the paper's terms.

    Attributes:
        system: as Table 1 spells it, `Rec:fixed:skip`, `Slide:12L`, `XL:512`.
        size: the column of Table 4 whose dimensions it has, or None.
        window, segment_length: in tokens.
        states: S; None without a recurrent layer.
        corpus: as the tables head their columns, or the name of the store's folder.
        vocabulary: (row, size) of Table 5, or the name it has.
    """

    system: str
    size: Size | None
    window: int
    segment_length: int
    states: int | None
    corpus: str
    vocabulary: tuple[str, str]

    @property
    def is_standard(self) -> bool:
        """Whether it has the dimensions of Table 1's row of its name."""
        row = next((row for row in TABLE_1 if row.name == self.system), None)
        return (
            row is not None
            and self.size == STANDARD
            and (self.window, self.segment_length) == (row.window, row.segment_length)
            and self.states in (None, STANDARD_STATES)
        )


def place(run: Run) -> Place:
    """The place of a run, at the paper's scale if it is the rung of a ladder."""
    settings = run.paper_settings
    layers, window = settings["LanguageModel.num_layers"], settings["LanguageModel.window"]
    segment = settings["Trainer.segment_length"]
    recurrent = tuple(settings.get("LanguageModel.recurrent_layers") or ())
    size = _size(settings, layers, bool(recurrent))
    return Place(
        _system(settings, layers, window, segment, recurrent),
        size,
        window,
        segment,
        settings.get("RecurrentCell.num_states") if recurrent else None,
        _corpus(run, settings),
        _vocabulary(settings),
    )


def _system(settings, layers, window, segment, recurrent):
    if not recurrent:
        if window != segment:
            return f"Slide:{layers}L"
        return f"XL:{window}" if layers == 12 else f"XL:{window}:{layers}-layer"
    family = "Feedback" if settings.get("LanguageModel.feedback") else "Rec"
    gate, arrangement = (settings.get(f"RecurrentCell.{n}") for n in ("gate", "arrangement"))
    where = ""
    if len(recurrent) != (1 if layers < 24 else 2):
        # The paper counts layers from 1.
        where = " @" + ",".join(str(index + 1) for index in recurrent)
    return f"{family}:{gate or 'fixed'}:{arrangement or 'skip'}{where}"


def _size(settings, layers, is_recurrent):
    dimensions = tuple(
        settings.get(f"LanguageModel.{name}")
        for name in ("width", "num_heads", "head_size", "feed_forward_size")
    )
    for size in TABLE_4:
        # A baseline may have one layer in twelve more.
        allowed = (size.layers,) if is_recurrent else (size.layers, size.layers * 13 // 12)
        if dimensions == size[3:7] and layers in allowed:
            return size
    return None


def _corpus(run, settings):
    vocabulary = _vocabulary(settings)[0]
    if run.corpus.startswith("pg19"):
        kinds = {"bytes": "PG19 bytes", "T5": "PG19 tokens"}
        return kinds.get(vocabulary, "PG19 SPM")
    if run.corpus.startswith("arxiv"):
        return "arXiv"
    return "GitHub" if run.corpus.startswith("github") else run.corpus


def _vocabulary(settings):
    name = str(settings.get("Corpus.vocabulary") or "of the source")
    if name in ("bytes", "@ByteVocabulary()"):
        return "bytes", "256"
    if "t5" in name.lower():
        return "T5", "32k"
    if found := re.search(r"pg19train_bpe_(\d+)", name):
        entries = int(found[1])
        return "PG19 SPM", f"{entries // 1000}k" if entries >= 1000 else str(entries)
    return name.rsplit("/", 1)[-1], str(settings.get("LanguageModel.vocabulary_size", ""))
