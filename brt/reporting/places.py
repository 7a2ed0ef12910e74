"""Where a run belongs in a paper's tables, read off its settings."""

import re
from typing import NamedTuple

from brt.reporting.block_recurrent import SIZES
from brt.reporting.runs import Run


class Place(NamedTuple):
    """A run in the paper's terms.

    Attributes:
        system: as Table 1 spells it, `Rec:fixed:skip`, `Slide:12L`, `XL:512`.
        size: name of the row of Table 4 whose dimensions it has, or None.
        window, segment_length: in tokens.
        states: S; None without a recurrent layer.
        gate_biases: how its gates begin; None without.
        corpus: as the tables head their columns, or the name of the store's folder.
        vocabulary_family: `T5`, `PG19 SPM`, `SentencePiece`, `bytes`, or the name it has.
        vocabulary: the family and its size, `PG19 SPM 32k`.
    """

    system: str
    size: str | None
    window: int
    segment_length: int
    states: int | None
    gate_biases: str | None
    corpus: str
    vocabulary_family: str
    vocabulary: str


def place(run: Run) -> Place:
    """The place of a run, at the paper's scale if it is the rung of a ladder."""
    settings = run.paper_settings
    layers, window = settings["LanguageModel.num_layers"], settings["LanguageModel.window"]
    segment = settings["Trainer.segment_length"]
    recurrent = tuple(settings.get("LanguageModel.recurrent_layers") or ())
    family, entries = _vocabulary(run, settings)
    return Place(
        _system(settings, layers, window, segment, recurrent),
        _size(settings, layers, bool(recurrent)),
        window,
        segment,
        settings.get("RecurrentCell.num_states") if recurrent else None,
        settings.get("RecurrentCell.gate_biases", "small") if recurrent else None,
        _corpus(run, family),
        family,
        f"{family} {entries}",
    )


def _system(settings, layers, window, segment, recurrent):
    memory = ""
    if settings.get("LanguageModel.memorizing_layers"):
        kind = " dense" if settings.get("ExternalMemory.search") == "dense" else ""
        memory = f"Memorizing Trans. {settings.get('ExternalMemory.size', 65_536) // 1024}k{kind}"
    if not recurrent:
        if memory:
            return memory
        if window != segment:
            return f"Slide:{layers}L"
        return f"XL:{window}" if layers == 12 else f"XL:{window}:{layers}-layer"
    family = "Feedback" if settings.get("LanguageModel.feedback") else "Rec"
    gate, arrangement = (settings.get(f"RecurrentCell.{n}") for n in ("gate", "arrangement"))
    where = ""
    if len(recurrent) != (1 if layers < 24 else 2):
        # The paper counts layers from 1.
        where = " @" + ",".join(str(index + 1) for index in recurrent)
    name = f"{family}:{gate or 'fixed'}:{arrangement or 'skip'}{where}"
    return f"{name} + {memory}" if memory else name


def _size(settings, layers, is_recurrent):
    dimensions = tuple(
        settings.get(f"LanguageModel.{name}")
        for name in ("width", "num_heads", "head_size", "feed_forward_size")
    )
    for size in SIZES:
        # A baseline may have one layer in twelve more.
        allowed = (size.layers,) if is_recurrent else (size.layers, size.layers * 13 // 12)
        if dimensions == size[3:7] and layers in allowed:
            return size.name
    return None


def _corpus(run, family):
    if run.corpus.startswith("pg19"):
        return {"bytes": "PG19 bytes", "T5": "PG19 tokens"}.get(family, "PG19 SPM")
    if run.corpus.startswith("arxiv"):
        return "arXiv"
    return "GitHub" if run.corpus.startswith("github") else run.corpus


def _vocabulary(run, settings):
    """Family and size, as Table 5 has them."""
    name = str(settings.get("Corpus.vocabulary") or "of the source")
    if name in ("bytes", "@ByteVocabulary()"):
        return "bytes", "256"
    if "t5" in name.lower():
        return "T5", "32k"
    found = re.search(r"pg19train_bpe_(\d+)", name)
    entries = int(found[1]) if found else settings.get("LanguageModel.vocabulary_size", 0)
    size = f"{entries // 1000}k" if entries >= 1000 else str(entries)
    if found:
        return "PG19 SPM", size
    if "substitute" in name:
        return "substitute", size
    if name.startswith("subwords:") and run.corpus.startswith("pg19"):
        return "PG19 STE", size
    if name.endswith(".model"):
        return "SentencePiece", size
    return name.rsplit("/", 1)[-1], size
