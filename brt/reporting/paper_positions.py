"""Positions of runs in the papers' tables, from their settings."""

import re
from functools import partial
from types import SimpleNamespace
from typing import Any

from brt.reporting.model_settings import model_name, model_setting, owners
from brt.reporting.papers.published_tables import read_rows
from brt.reporting.runs import Run

SETTINGS: dict[str, tuple[str, Any]] = {
    "segment_length": ("Trainer.segment_length", 0),
    "steps": ("Trainer.steps", 0),
    "segments": ("Trainer.segments_per_step", 1),
    "loss": ("Trainer.loss", "full"),
    "layers": ("num_layers", 0),
    "window": ("window", None),
    "states": ("RecurrentCell.num_states", None),
    "gate_biases": ("RecurrentCell.gate_biases", "small"),
    "memory": ("memory_length", 0),
    "memory_tokens": ("num_memory", 0),
    "encoding": ("encoding", "relative"),
    "overlap": ("overlap", 0),
}
"""Attributes of a position that are settings, of the model or by full name, with their defaults.

memory, memory_tokens: M, hidden states cached in each layer, and m. segments: of a sample of a task
or of a labelled document; 1 for text. overlap: tokens that a window reads again.
"""
TASKS = {
    "CopyTask": ("copy", "length", 24),
    "ReverseTask": ("reverse", "length", 24),
    "AssociativeRetrieval": ("retrieval", "num_pairs", 4),
    "QuadraticEquations": ("quadratic", "max_root", 100),
}
"""Name of each source's task, the argument of its size, and the default."""
LABELLED = ("Hyperpartisan", "HotpotQA", "MuSiQue", "Scrolls", "LabelledTexts")
PUBLISHED = {
    ("BlockRecurrentTransformer",) * 2: ([], ["RecurrentCell"], ["ExternalMemory"]),
    ("TransformerXL",) * 2: ([], ["HiddenMemory"]),
    ("RecurrentMemoryTransformer", "TransformerXL"): ([], ["HiddenMemory"]),
}
"""The memories that the papers give a model with its backbone."""
BETWEEN_WINDOWS = {
    "PooledMemory": "pooled",
    "FinalLayerMemory": "pooled",
    "CellMemory": "cell",
    "SlotMemory": "slots",
}
SIZES, CORPORA = read_rows("sizes"), read_rows("corpora")


def flops_per_token(window: int, overlap: int = 0, layers: int = 12, width: int = 768) -> float:
    """Returns the operations of a window's layers per new token, as the papers count them.

    The layers' matrices and the attention within a window, without logits and recurrence.
    Source: Adding Recurrence to Pretrained Transformers, Tables 1 and 2.
    """
    return 2 * layers * width * (12 * width + window) * window / (window - overlap)


class PaperPosition(SimpleNamespace):
    """A run in the papers' terms: `SETTINGS` and the following; lengths in tokens.

    model: name of its class. corpus: as in the headings of tables, or the store's name.
    system: as in Table 1 of the Block-Recurrent paper, `Rec:fixed:skip`, `Slide:12L`, `XL:512`;
        `Tr-XL`, `Baseline` (the same without recurrence), `MemTr`, `RMT`; or `model`.
    size: name of the published size with the same dimensions, or None.
    vocabulary: family and size, `PG19 SPM 32k`.
    memories: classes of memories that no paper combines so.
    bptt_depth: memories that gradients cross.
    task, task_length, symbols: None for text; symbols to copy, pairs, or the largest root.
    window_length, memory_size: with the overlap; m, or M without memory tokens.
    memory_share: memory_size over segment length.
    evaluated_as_trained: whether M is that of training. evaluation_overlap: overlap in evaluation.
    visible_context: tokens that a prediction may depend on in training (RMT, Figure 5a), or None.
    flops: of the layers of a pretrained decoder for each new token, in 10^8; None for others.
    memory_shown: `75+5`, M and m; `512 states`; names of classes; or a dash.
    vectors_shown: vectors that a batch element carries: M in each layer, m in all (RMT, section 5).
    """


def paper_position(run: Run) -> PaperPosition:
    settings = run.paper_settings
    family, entries = _vocabulary(run, settings)
    at = _of_model(settings)
    at.corpus, at.vocabulary = _corpus(run.corpus, family), f"{family} {entries}"
    at.bptt_depth, at.task, at.task_length, at.symbols = _depth(settings), None, None, None
    source = str(settings.get("Corpus.source", "")).strip("@()").rsplit(".", 1)[-1]
    if source in TASKS:
        at.task, size, default = TASKS[source]
        at.task_length = settings.get(f"{source}.{size}", default)
        at.symbols = settings.get(f"{source}.num_symbols", 10) if size == "length" else None
        at.corpus = at.task
    elif source in LABELLED:
        at.corpus = source
    else:
        at.segments = 1
    at.evaluated_as_trained = at.evaluation_memory == at.memory
    at.window_length = at.segment_length + at.overlap
    at.memory_size = at.memory_tokens or at.memory
    at.memory_share = at.memory_size / at.segment_length
    seen = {"Baseline": 1, "MemTr": 1, "Tr-XL": 1, "RMT": at.bptt_depth + 1}.get(at.system)
    at.visible_context = seen and seen * at.segment_length + at.memory
    if at.model in ("TransformerXL", "RecurrentMemoryTransformer"):
        carried = at.layers * at.memory + at.memory_tokens * (at.system != "MemTr")
        at.vectors_shown = f"{carried:,}"
        at.memory_shown = "+".join(str(n) for n in (at.memory, at.memory_tokens) if n) or "0"
    else:
        at.vectors_shown = str(at.states or "–")
        at.memory_shown = f"{at.states} states" if at.states else "–"
    at.memory_shown = ", ".join(at.memories) or at.memory_shown
    return at


def system_and_size(settings: dict) -> tuple[str, str | None]:
    at = _of_model(settings)
    return at.system, at.size


def _of_model(settings) -> PaperPosition:
    model, get = model_name(settings), partial(model_setting, settings)
    bound = {name: settings.get(of, get(of, default)) for name, (of, default) in SETTINGS.items()}
    at = PaperPosition(model=model, system=model, size=None, memories=(), flops=None, **bound)
    at.evaluation_overlap = get("overlap", at.overlap, "evaluation/")
    at.evaluation_memory = get("memory_length", at.memory, "evaluation/")
    recurrent = tuple(get("recurrent_layers") or ())
    memories = ["RecurrentCell"] * bool(recurrent)
    memories += ["ExternalMemory"] * bool(get("memorizing_layers"))
    around = f"{get('memory', '')} {get('memories', '')}"
    memories += re.findall(r"@(?:\w+[/.])*(\w+)", around)
    backbone = owners(settings)[-1]
    at.states = at.states if recurrent else None
    if model.startswith("Pretrained"):
        _set_pretrained(at, settings, memories)
    elif memories in PUBLISHED.get((model, backbone), ()):
        at.size = _size(backbone, get, recurrent)
        at.system = _system(settings, at, get, recurrent)
    else:
        at.memories, at.states = tuple(memories), None
        at.memory = at.evaluation_memory = at.memory_tokens = 0
    return at


def _size(backbone, get, recurrent):
    # A baseline of the Block-Recurrent paper may have one layer in twelve more.
    more = backbone == "BlockRecurrentTransformer" and not recurrent
    for model, size, layers, *dimensions in (row.values() for row in SIZES):
        numbers = {int(layers), int(layers) * 13 // 12} if more else {int(layers)}
        same = dimensions == [str(get(name)) for name in [*SIZES[0]][3:]]
        if model == backbone and same and get("num_layers") in numbers:
            return size
    return None


def _system(settings, at, get, recurrent):
    if at.model != "BlockRecurrentTransformer":
        if at.memory_tokens and not get("memory_at_end", True):
            return "MemTr"
        parts = {"Tr-XL": at.memory, "RMT": at.memory_tokens}
        return " + ".join(name for name, size in parts.items() if size) or "Baseline"
    if recurrent:
        gate = settings.get("RecurrentCell.gate") or "fixed"
        arrangement = settings.get("RecurrentCell.arrangement") or "skip"
        # The paper counts layers from 1.
        other = "" if len(recurrent) == (1 if at.layers < 24 else 2) else " @"
        other += ",".join(str(index + 1) for index in recurrent if other)
        return f"{'Feedback' if get('feedback') else 'Rec'}:{gate}:{arrangement}{other}"
    if get("memorizing_layers"):
        dense = " dense" * (settings.get("ExternalMemory.search") == "dense")
        return f"Memorizing Trans. {settings.get('ExternalMemory.size', 65_536) // 1024}k{dense}"
    if at.window != at.segment_length:
        return f"Slide:{at.layers}L"
    return f"XL:{at.window}" if at.layers == 12 else f"XL:{at.window}:{at.layers}-layer"


def _set_pretrained(at, settings, memories):
    body, layers, overlap = owners(settings)[-1], at.layers or 0, at.evaluation_overlap
    width, at.layers = settings.get(f"{body}.width") or 0, layers
    parts = [word for name, word in BETWEEN_WINDOWS.items() if name in memories]
    name = " + ".join(["GPT-2" if body == "GPT2" else body, *dict.fromkeys(parts)])
    at.system = f"RMT {name}" if at.memory_tokens else name
    at.size = "base" if (layers, width) == (12, 768) else None
    if at.model == "PretrainedLanguageModel" and layers and width:
        new = settings.get("Evaluation.segment_length") or at.segment_length
        at.flops = flops_per_token(overlap + new, overlap, layers, width) / 1e8


def _depth(settings):
    depth = settings.get("Trainer.reread_segments") or settings.get("Trainer.bptt_depth")
    return settings.get("Trainer.segments_per_step", 1) - 1 if depth is None else depth


def _corpus(store, family):
    rows = (row for row in CORPORA if store.startswith(row["store"]))
    return next((row["corpus"] for row in rows if row["vocabulary"] in ("", family)), store)


def _vocabulary(run, settings):
    bound = settings.get("Corpus.vocabulary") or settings.get("FirstTokens.vocabulary")
    name, entries = str(bound or "of the source"), model_setting(settings, "vocabulary_size", 0)
    of_backbone = model_name(settings).startswith("Pretrained") and name.startswith("bpe:")
    if name in ("bytes", "@ByteVocabulary()"):
        return "bytes", "256"
    if of_backbone or name.startswith(("pretrained:", "@PretrainedFolderVocabulary")):
        return "pretrained", str(entries or name)
    if "t5" in name.lower():
        return "T5", "32k"
    if name.startswith(("words:", "@WordVocabulary")):
        return "words", str(entries)
    if released := re.search(r"pg19train_bpe_(\d+)", name):
        family, entries = "PG19 SPM", int(released[1])
    elif "substitute" in name:
        family = "substitute"
    elif name.startswith("subwords:") and run.corpus.startswith("pg19"):
        family = "PG19 STE"
    else:
        family = "SentencePiece" if name.endswith(".model") else name.rsplit("/", 1)[-1]
    return family, f"{entries // 1000}k" if entries >= 1000 else str(entries)
