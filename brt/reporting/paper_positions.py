"""Positions of runs in the papers' tables, from their settings."""

import re
from typing import Any, NamedTuple

from brt.reporting.model_settings import model_name, model_setting, owners
from brt.reporting.papers.reading import read_paper
from brt.reporting.runs import Run

TASKS = {
    "CopyTask": ("copy", "length", 24),
    "ReverseTask": ("reverse", "length", 24),
    "AssociativeRetrieval": ("retrieval", "num_pairs", 4),
    "QuadraticEquations": ("quadratic", "max_root", 100),
}
"""Name of each source's task, the argument of its size, and the default."""
LABELLED = ("Hyperpartisan", "HotpotQA", "MuSiQue", "Scrolls", "LabelledTexts")
CORPORA = {"enwik8": "enwik8", "arxiv": "arXiv", "github": "GitHub"}
CORPORA_OF_WORDS = {
    "wikitext103": "WikiText-103",
    "penn_treebank": "Penn Treebank",
    "one_billion_word": "One Billion Word",
}
"""Corpora by the prefixes of their stores' names."""
PG19 = {"bytes": "PG19 bytes", "T5": "PG19 tokens", "pretrained": "PG-19"}
"""Names of PG19 by the family of the vocabulary; else `PG19 SPM`."""
ENCODINGS = {"relative": "this paper", "shaw": "Shaw", "absolute": "Vaswani", "learned": "Al-Rfou"}
BODIES = {"GPT2": "GPT-2"}
BETWEEN_WINDOWS = {
    "PooledMemory": "pooled",
    "FinalLayerMemory": "pooled",
    "CellMemory": "cell",
    "SlotMemory": "slots",
}
SIZES = read_paper("block_recurrent").sizes
XL_SIZES = read_paper("transformer_xl").sizes
DIMENSIONS = ("width", "num_heads", "head_size", "feed_forward_size")
BLOCKS = "BlockRecurrentTransformer"


def flops_per_token(window: int, overlap: int = 0, layers: int = 12, width: int = 768) -> float:
    """Returns the operations of a window's layers for each new token, as the papers count them.

    The layers' matrices and the attention within a window, without logits and recurrence.
    Source: Adding Recurrence to Pretrained Transformers, Tables 1 and 2.
    """
    return 2 * layers * width * (12 * width + window) * window / (window - overlap)


class PaperPosition(NamedTuple):
    """A run in the papers' terms; lengths in tokens.

    system: as in Table 1 of the Block-Recurrent paper, `Rec:fixed:skip`, `Slide:12L`, `XL:512`;
        `Tr-XL`, `Baseline` (the same without recurrence), `MemTr`, `RMT`, `Tr-XL + RMT`; or the
        name of the class.
    corpus: as in the headings of tables, or the name of the store's folder.
    vocabulary: family and size, `PG19 SPM 32k`.
    size: name of the published size with the same dimensions, or None.
    memory, evaluation_memory, memory_tokens: M, hidden states cached in each layer, and m.
    memories: classes of memories that no paper combines so.
    bptt_depth: memories that gradients cross.
    encoding: of positions, as in Table 5 of the Transformer-XL paper.
    loss: "full" or "half" of the segment's positions.
    task: `copy`, `reverse`, `retrieval` or `quadratic`; None for text.
    task_length: symbols to copy, pairs, or the largest root.
    segments: of a sample of the task, or of a labelled document; 1 for text.
    overlap, evaluation_overlap: tokens that a window of a pretrained model reads again.
    flops: of the layers of a pretrained decoder for each new token, in 10^8; None for others.
    """

    model: str
    system: str
    segment_length: int
    corpus: str
    vocabulary_family: str
    vocabulary: str
    layers: int
    size: str | None = None
    window: int | None = None
    states: int | None = None
    gate_biases: str | None = None
    memory: int = 0
    evaluation_memory: int = 0
    memory_tokens: int = 0
    memories: tuple[str, ...] = ()
    bptt_depth: int = 0
    encoding: str | None = None
    loss: str = "full"
    steps: int = 0
    task: str | None = None
    task_length: int | None = None
    symbols: int | None = None
    segments: int = 1
    overlap: int = 0
    evaluation_overlap: int = 0
    flops: float | None = None

    @property
    def window_length(self) -> int:
        return self.segment_length + self.overlap

    @property
    def evaluated_as_trained(self) -> bool:
        return self.evaluation_memory == self.memory

    @property
    def memory_size(self) -> int:
        """M of a cache, m of a recurrent memory, as in the figures of the RMT paper."""
        return self.memory_tokens or self.memory

    @property
    def memory_share(self) -> float:
        """Memory size over segment length: 1 in Figure 3 of the RMT paper, 0.5 in Figure 8."""
        return self.memory_size / self.segment_length

    @property
    def memory_shown(self) -> str:
        """`75+5`: cached states and memory tokens; `512 states`; names of classes; or a dash."""
        if self.memories:
            return ", ".join(self.memories)
        if self.model not in _WITH_MEMORY:
            return f"{self.states} states" if self.states else "–"
        return "+".join(str(n) for n in (self.memory, self.memory_tokens) if n) or "0"

    @property
    def symbols_shown(self) -> str:
        return str(self.symbols or "–")

    @property
    def visible_context(self) -> int | None:
        """Tokens that a prediction may depend on in training (RMT, section 5 and Figure 5a)."""
        return {
            "Baseline": self.segment_length,
            "MemTr": self.segment_length,
            "Tr-XL": self.memory + self.segment_length,
            "RMT": (self.bptt_depth + 1) * self.segment_length,
        }.get(self.system)

    @property
    def vectors_shown(self) -> str:
        """Vectors that a batch element carries: M in each layer, m in all (RMT, section 5)."""
        if self.model not in _WITH_MEMORY:
            return str(self.states or "–")
        tokens = 0 if self.system == "MemTr" else self.memory_tokens
        return f"{self.layers * self.memory + tokens:,}"


def paper_position(run: Run) -> PaperPosition:
    settings = run.paper_settings
    family, entries = _vocabulary(run, settings)
    attributes = {
        "model": model_name(settings),
        "segment_length": settings["Trainer.segment_length"],
        "corpus": _corpus(run, family),
        "vocabulary_family": family,
        "vocabulary": f"{family} {entries}",
        "steps": settings.get("Trainer.steps", 0),
        "bptt_depth": _depth(settings),
    }
    return PaperPosition(**attributes | _task(settings) | _of_model(settings))


def system_and_size(settings: dict) -> tuple[str, str | None]:
    attributes = _of_model(settings)
    return attributes["system"], attributes.get("size")


_WITH_MEMORY = ("TransformerXL", "RecurrentMemoryTransformer")


def _of_model(settings) -> dict[str, Any]:
    model = model_name(settings)
    if not _is_published(settings, model):
        return _other(settings, model)
    if model == BLOCKS:
        return _block_recurrent(settings)
    if model in _WITH_MEMORY:
        return _transformer_xl(settings)
    if model in ("PretrainedLanguageModel", "PretrainedReader"):
        return _pretrained(settings, model)
    return _other(settings, model)


def _is_published(settings, model):
    cached = str(settings.get("TransformerXL.memory", "@HiddenMemory")).strip("@()")
    names = ("recurrent_layers", "memorizing_layers", "memories")
    recurrent, memorizing, further = (settings.get(f"{BLOCKS}.{name}") for name in names)
    around = model != "RecurrentMemoryTransformer" or owners(settings)[-1] == "TransformerXL"
    return cached == "HiddenMemory" and around and not (further or (recurrent and memorizing))


def _block_recurrent(settings):
    layers, window = (settings[f"{BLOCKS}.{name}"] for name in ("num_layers", "window"))
    recurrent = tuple(settings.get(f"{BLOCKS}.recurrent_layers") or ())
    dimensions = tuple(settings.get(f"{BLOCKS}.{name}") for name in DIMENSIONS)
    sizes = (
        size.name
        for size in SIZES
        if dimensions == size[2:]
        # A baseline may have one layer in twelve more.
        and (layers == size.layers or (not recurrent and layers == size.layers * 13 // 12))
    )
    attributes = {
        "system": _system(settings, layers, window, recurrent),
        "size": next(sizes, None),
        "window": window,
        "layers": layers,
    }
    if recurrent:
        attributes["states"] = settings.get("RecurrentCell.num_states")
        attributes["gate_biases"] = settings.get("RecurrentCell.gate_biases", "small")
    return attributes


def _system(settings, layers, window, recurrent):
    if recurrent:
        family = "Feedback" if settings.get(f"{BLOCKS}.feedback") else "Rec"
        gate = settings.get("RecurrentCell.gate") or "fixed"
        name = f"{family}:{gate}:{settings.get('RecurrentCell.arrangement') or 'skip'}"
        if len(recurrent) != (1 if layers < 24 else 2):  # the paper counts layers from 1
            name += " @" + ",".join(str(index + 1) for index in recurrent)
        return name
    if settings.get(f"{BLOCKS}.memorizing_layers"):
        kind = " dense" if settings.get("ExternalMemory.search") == "dense" else ""
        return f"Memorizing Trans. {settings.get('ExternalMemory.size', 65_536) // 1024}k{kind}"
    if window != settings["Trainer.segment_length"]:
        return f"Slide:{layers}L"
    return f"XL:{window}" if layers == 12 else f"XL:{window}:{layers}-layer"


def _transformer_xl(settings):
    def setting(name, default=None, scope=""):
        return model_setting(settings, name, model_setting(settings, name, default), scope)

    memory, tokens = setting("memory_length", 0), setting("num_memory", 0)
    system = " + ".join(["Tr-XL"] * (memory > 0) + ["RMT"] * (tokens > 0)) or "Baseline"
    if tokens and not setting("memory_at_end", True):
        system = "MemTr"
    dimensions = tuple(setting(name) for name in ("num_layers", *DIMENSIONS))
    return {
        "system": system,
        "size": next((size.name for size in XL_SIZES if size[1:] == dimensions), None),
        "layers": setting("num_layers"),
        "memory": memory,
        "evaluation_memory": setting("memory_length", 0, "evaluation/"),
        "memory_tokens": tokens,
        "encoding": ENCODINGS.get(setting("encoding", "relative"), "this paper"),
        "loss": settings.get("Trainer.loss", "full"),
    }


def _pretrained(settings, model):
    body = owners(settings)[-1]
    around = str(settings.get(f"{model}.memories") or "")
    parts = [word for name, word in BETWEEN_WINDOWS.items() if f"@{name}" in around]
    tokens = settings.get(f"{model}.num_memory", 0)
    system = " + ".join([BODIES.get(body, body), *dict.fromkeys(parts)])
    overlap = settings.get(f"{model}.overlap", 0)
    evaluated = settings.get(f"evaluation/{model}.overlap", overlap)
    layers, width = (settings.get(f"{body}.{name}") or 0 for name in ("num_layers", "width"))
    flops = None
    if model == "PretrainedLanguageModel" and layers and width:
        new = settings.get("Evaluation.segment_length") or settings["Trainer.segment_length"]
        flops = flops_per_token(evaluated + new, evaluated, layers, width) / 1e8
    return {
        "system": f"RMT {system}" if tokens else system,
        "size": "base" if (layers, width) == (12, 768) else None,
        "layers": layers,
        "memory_tokens": tokens,
        "overlap": overlap,
        "evaluation_overlap": evaluated,
        "flops": flops,
    }


def _other(settings, model):
    parts = ("recurrent_layers", "RecurrentCell"), ("memorizing_layers", "ExternalMemory")
    memories = [name for binding, name in parts if model_setting(settings, binding)]
    for binding in ("memory", "memories"):
        bound = str(model_setting(settings, binding, ""))
        memories += re.findall(r"@(?:\w+[/.])*(\w+)", bound)
    return {
        "memories": tuple(memories),
        "system": model,
        "window": model_setting(settings, "window"),
        "layers": model_setting(settings, "num_layers", 0),
    }


def _depth(settings):
    if again := settings.get("Trainer.reread_segments"):
        return again
    depth = settings.get("Trainer.bptt_depth")
    return settings.get("Trainer.segments_per_step", 1) - 1 if depth is None else depth


def _task(settings):
    source = str(settings.get("Corpus.source", "")).strip("@()").rsplit(".", 1)[-1]
    segments = settings.get("Trainer.segments_per_step", 1)
    if source in LABELLED:
        return {"corpus": source, "segments": segments}
    if source not in TASKS:
        return {}
    name, size, default = TASKS[source]
    return {
        "task": name,
        "corpus": name,
        "task_length": settings.get(f"{source}.{size}", default),
        "symbols": settings.get(f"{source}.num_symbols", 10) if size == "length" else None,
        "segments": segments,
    }


def _corpus(run, family):
    if run.corpus.startswith("pg19"):
        return PG19.get(family, "PG19 SPM")
    if run.corpus.startswith("wikitext103") and family == "pretrained":
        return "WikiText-103 raw"
    known = CORPORA | (CORPORA_OF_WORDS if family == "words" else {})
    return next((n for begin, n in known.items() if run.corpus.startswith(begin)), run.corpus)


def _vocabulary(run, settings):
    bound = settings.get("Corpus.vocabulary") or settings.get("FirstTokens.vocabulary")
    name = str(bound or "of the source")
    entries = model_setting(settings, "vocabulary_size", 0)
    if name in ("bytes", "@ByteVocabulary()"):
        return "bytes", "256"
    of_body = model_name(settings).startswith("Pretrained") and name.startswith("bpe:")
    if of_body or name.startswith(("pretrained:", "@PretrainedFolderVocabulary")):
        return "pretrained", str(entries or name)
    if "t5" in name.lower():
        return "T5", "32k"
    if name.startswith(("words:", "@WordVocabulary")):
        return "words", str(entries)
    released = re.search(r"pg19train_bpe_(\d+)", name)
    entries = int(released[1]) if released else entries
    size = f"{entries // 1000}k" if entries >= 1000 else str(entries)
    if released:
        return "PG19 SPM", size
    if "substitute" in name:
        return "substitute", size
    if name.startswith("subwords:") and run.corpus.startswith("pg19"):
        return "PG19 STE", size
    return "SentencePiece" if name.endswith(".model") else name.rsplit("/", 1)[-1], size
