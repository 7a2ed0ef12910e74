"""Positions of runs in the papers' tables, read off their settings."""

import re
from typing import NamedTuple

from brt.reporting.model_settings import model_name, model_setting, owners
from brt.reporting.papers.reading import read_paper
from brt.reporting.runs import Run

TASKS = {
    "CopyTask": ("copy", "length"),
    "ReverseTask": ("reverse", "length"),
    "AssociativeRetrieval": ("retrieval", "num_pairs"),
    "QuadraticEquations": ("quadratic", "max_root"),
}
"""Name of each source's task, and the argument that says how large it is."""
_DEFAULT_LENGTHS = {"length": 24, "num_pairs": 4, "max_root": 100}
SIZES = read_paper("block_recurrent").sizes
XL_SIZES = read_paper("transformer_xl").sizes
ENCODINGS = {
    "relative": "this paper",
    "shaw": "Shaw",
    "absolute": "Vaswani",
    "learned": "Al-Rfou",
}


def flops_per_token(window: int, overlap: int = 0, layers: int = 12, width: int = 768) -> float:
    """Returns the operations of a window's layers for each of its new tokens, without the logits.

    Source: Tables 1 and 2 of Adding Recurrence to Pretrained Transformers, whose numbers are those
    of the layers' matrices and of the attention within a window; they do not count the recurrence.
    """
    matrices = 2 * 12 * layers * width**2
    attention = 2 * layers * window * width
    return (matrices + attention) * window / (window - overlap)


def visible_context(system: str, segment_length: int, memory: int, bptt_depth: int) -> int | None:
    """Returns the tokens that a prediction may depend on in training; None where none is printed.

    Source: RMT, section 5 and Figure 5a.
    """
    return {
        "Baseline": segment_length,
        "MemTr": segment_length,
        "Tr-XL": memory + segment_length,
        "RMT": (bptt_depth + 1) * segment_length,
    }.get(system)


class PaperPosition(NamedTuple):
    """A run in the papers' terms; lengths in tokens.

    Attributes:
        model: name of its class, `BlockRecurrentTransformer`.
        system: as Table 1 of the Block-Recurrent paper spells it, `Rec:fixed:skip`, `Slide:12L`,
            `XL:512`; or `Tr-XL`, `Baseline` (the same without recurrence), `MemTr`, `RMT`,
            `Tr-XL + RMT`; or the class's name.
        size: name of the published size whose dimensions it has, or None.
        window, segment_length: the window is None where there is none.
        states: S; None without a recurrent layer.
        gate_biases: how its gates begin; None without.
        corpus: as the tables head their columns, or the name of the store's folder.
        vocabulary_family: `T5`, `PG19 SPM`, `SentencePiece`, `bytes`, or the name it has.
        vocabulary: the family and its size, `PG19 SPM 32k`.
        layers: their number.
        memory: M, hidden states cached in each layer.
        evaluation_memory: M in evaluation.
        memory_tokens: m.
        memories: names of the classes of memories, where they are combined as in no paper.
        bptt_depth: memories that gradients cross.
        encoding: of positions, as Table 5 of the Transformer-XL paper names it.
        loss: "full" or "half" of the segment's positions.
        steps: updates in all.
        task: `copy`, `reverse`, `retrieval` or `quadratic`; None for text.
        task_length: n of the task: symbols to be copied, pairs, or the largest root.
        symbols: different ones that copy and reverse draw from; None for others.
        segments: of a sample of the task, or of a labelled document; 1 for text.
        overlap: tokens that a window of a pretrained model reads again.
        evaluation_overlap: the same in evaluation.
        flops: of the layers of a pretrained decoder for each new token, in 10^8, as the Adding
            Recurrence paper counts them; None for others.
    """

    model: str
    system: str
    size: str | None
    window: int | None
    segment_length: int
    states: int | None
    gate_biases: str | None
    corpus: str
    vocabulary_family: str
    vocabulary: str
    layers: int
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
        """Tokens of a window, those that are read again too."""
        return self.segment_length + self.overlap

    @property
    def evaluated_as_trained(self) -> bool:
        """True if it sees as far in evaluation as in training."""
        return self.evaluation_memory == self.memory

    @property
    def memory_size(self) -> int:
        """As the figures of the RMT paper count it: M of a cache, m of a recurrent memory."""
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
        """`10`, or a dash where there is no choice."""
        return str(self.symbols or "–")

    @property
    def visible_context(self) -> int | None:
        """Tokens a prediction may depend on in training, where the RMT paper has a measure."""
        return visible_context(self.system, self.segment_length, self.memory, self.bptt_depth)

    @property
    def vectors_shown(self) -> str:
        """Vectors that a batch element carries between segments.

        Source: RMT, section 5: a Transformer-XL caches M in each layer, an RMT m in all.
        """
        if self.model not in _WITH_MEMORY:
            return str(self.states or "–")
        tokens = 0 if self.system == "MemTr" else self.memory_tokens
        return f"{self.layers * self.memory + tokens:,}"


def paper_position(run: Run) -> PaperPosition:
    """Returns the position of a run, at the paper's scale if it is the entry of a ladder."""
    settings = run.paper_settings
    model = model_name(settings)
    family, entries = _vocabulary(run, settings, model)
    segment = settings["Trainer.segment_length"]
    common = {
        "model": model,
        "segment_length": segment,
        "corpus": _corpus(run, family),
        "vocabulary_family": family,
        "vocabulary": f"{family} {entries}",
        "steps": settings.get("Trainer.steps", 0),
        "bptt_depth": _depth(settings),
    } | _task(settings)
    return PaperPosition(**common | _own(settings))


def system_and_size(settings: dict) -> tuple[str, str | None]:
    """The `system` and the `size` of a `PaperPosition`, of the settings of an experiment."""
    own = _own(settings)
    return own["system"], own["size"]


def _own(settings):
    """Returns the attributes of a `PaperPosition` that say something of the model alone."""
    model = model_name(settings)
    of_model = _OF_MODEL.get(model, _other) if _is_published(settings, model) else _other
    return of_model(settings, model, settings["Trainer.segment_length"])


def _language_model(settings, model, segment):
    layers, window = (
        settings["BlockRecurrentTransformer.num_layers"],
        settings["BlockRecurrentTransformer.window"],
    )
    recurrent = tuple(settings.get("BlockRecurrentTransformer.recurrent_layers") or ())
    return {
        "system": _system(settings, layers, window, segment, recurrent),
        "size": _size(settings, layers, bool(recurrent)),
        "window": window,
        "layers": layers,
        "states": settings.get("RecurrentCell.num_states") if recurrent else None,
        "gate_biases": settings.get("RecurrentCell.gate_biases", "small") if recurrent else None,
    }


def _transformer_xl(settings, model, segment):
    """Returns attributes of Transformer-XL, and of RMT around it, whose layers are the same."""

    def setting(name, default=None, scope=""):
        unscoped = model_setting(settings, name, default)
        return model_setting(settings, name, unscoped, scope)

    memory, tokens = setting("memory_length", 0), setting("num_memory", 0)
    if tokens and not setting("memory_at_end", True):
        system = "MemTr"
    else:
        system = {
            (False, False): "Baseline",
            (True, False): "Tr-XL",
            (False, True): "RMT",
            (True, True): "Tr-XL + RMT",
        }[memory > 0, tokens > 0]
    dimensions = tuple(
        setting(name)
        for name in ("num_layers", "width", "num_heads", "head_size", "feed_forward_size")
    )
    return {
        "system": system,
        "size": next((size.name for size in XL_SIZES if size[1:] == dimensions), None),
        "window": None,
        "layers": setting("num_layers"),
        "states": None,
        "gate_biases": None,
        "memory": memory,
        "evaluation_memory": setting("memory_length", 0, "evaluation/"),
        "memory_tokens": tokens,
        "encoding": ENCODINGS.get(setting("encoding", "relative"), "this paper"),
        "loss": settings.get("Trainer.loss", "full"),
    }


def _is_published(settings, model):
    """Returns whether the model's parts are those of the papers, and not memories combined anew."""
    of_xl = str(settings.get("TransformerXL.memory", "@HiddenMemory")).strip("@()")
    of_stack = [
        settings.get(f"BlockRecurrentTransformer.{name}")
        for name in ("recurrent_layers", "memorizing_layers", "memories")
    ]
    further = of_stack[2] or (of_stack[0] and of_stack[1])
    around = model != "RecurrentMemoryTransformer" or owners(settings)[-1] == "TransformerXL"
    return of_xl == "HiddenMemory" and around and not further


def _other(settings, model, segment):
    """Returns attributes of other models: LSTM and QRNN, of Table 6 of Transformer-XL."""
    parts = ("recurrent_layers", "RecurrentCell"), ("memorizing_layers", "ExternalMemory")
    memories = [name for binding, name in parts if model_setting(settings, binding)]
    for binding in ("memory", "memories"):
        bound = str(model_setting(settings, binding, ""))
        memories += re.findall(r"@(?:\w+[/.])*(\w+)", bound)
    return {
        "memories": tuple(memories),
        "system": model,
        "size": None,
        "window": model_setting(settings, "window"),
        "layers": model_setting(settings, "num_layers", 0),
        "states": None,
        "gate_biases": None,
    }


BODIES = {"GPT2": "GPT-2"}
"""Names of bodies as the papers spell them, where their classes have others."""
BETWEEN_WINDOWS = {
    "PooledMemory": "pooled",
    "FinalLayerMemory": "pooled",
    "CellMemory": "cell",
    "SlotMemory": "slots",
}


def _pretrained(settings, model, segment):
    """Returns attributes of pretrained bodies over windows or labelled documents."""
    body = owners(settings)[-1]
    around = str(settings.get(f"{model}.memories") or "")
    parts = [word for name, word in BETWEEN_WINDOWS.items() if f"@{name}" in around]
    tokens = settings.get(f"{model}.num_memory", 0)
    system = " + ".join([BODIES.get(body, body), *dict.fromkeys(parts)])
    overlap = settings.get(f"{model}.overlap", 0)
    own = settings.get(f"evaluation/{model}.overlap", overlap)
    layers = settings.get(f"{body}.num_layers") or 0
    width = settings.get(f"{body}.width") or 0
    known = model == "PretrainedLanguageModel" and layers and width
    new = settings.get("Evaluation.segment_length") or segment
    flops = flops_per_token(own + new, own, layers, width) / 1e8 if known else None
    return {
        "system": f"RMT {system}" if tokens else system,
        "size": "base" if (layers, width) == (12, 768) else None,
        "window": None,
        "layers": layers,
        "states": None,
        "gate_biases": None,
        "memory_tokens": tokens,
        "overlap": overlap,
        "evaluation_overlap": own,
        "flops": flops,
    }


LABELLED = ("Hyperpartisan", "HotpotQA", "MuSiQue", "Scrolls", "LabelledTexts")
"""Sources of labelled documents, by which tables head their columns."""
_WITH_MEMORY = ("TransformerXL", "RecurrentMemoryTransformer")
_OF_MODEL = {
    "BlockRecurrentTransformer": _language_model,
    **dict.fromkeys(_WITH_MEMORY, _transformer_xl),
    **dict.fromkeys(("PretrainedLanguageModel", "PretrainedReader"), _pretrained),
}


def _depth(settings):
    if again := settings.get("Trainer.reread_segments"):
        return again
    depth = settings.get("Trainer.bptt_depth")
    return settings.get("Trainer.segments_per_step", 1) - 1 if depth is None else depth


def _task(settings):
    """Returns attributes of an algorithmic task; nothing for text."""
    source = str(settings.get("Corpus.source", "")).strip("@()").rsplit(".", 1)[-1]
    if source in LABELLED:
        return {"corpus": source, "segments": settings.get("Trainer.segments_per_step", 1)}
    if source not in TASKS:
        return {}
    name, length = TASKS[source]
    return {
        "task": name,
        "corpus": name,
        "task_length": settings.get(f"{source}.{length}", _DEFAULT_LENGTHS[length]),
        "symbols": settings.get(f"{source}.num_symbols", 10) if length == "length" else None,
        "segments": settings.get("Trainer.segments_per_step", 1),
    }


def _system(settings, layers, window, segment, recurrent):
    memory = ""
    if settings.get("BlockRecurrentTransformer.memorizing_layers"):
        kind = " dense" if settings.get("ExternalMemory.search") == "dense" else ""
        memory = f"Memorizing Trans. {settings.get('ExternalMemory.size', 65_536) // 1024}k{kind}"
    if not recurrent:
        if memory:
            return memory
        if window != segment:
            return f"Slide:{layers}L"
        return f"XL:{window}" if layers == 12 else f"XL:{window}:{layers}-layer"
    family = "Feedback" if settings.get("BlockRecurrentTransformer.feedback") else "Rec"
    gate, arrangement = (settings.get(f"RecurrentCell.{n}") for n in ("gate", "arrangement"))
    where = ""
    if len(recurrent) != (1 if layers < 24 else 2):
        # The paper counts layers from 1.
        where = " @" + ",".join(str(index + 1) for index in recurrent)
    name = f"{family}:{gate or 'fixed'}:{arrangement or 'skip'}{where}"
    return f"{name} + {memory}" if memory else name


def _size(settings, layers, is_recurrent):
    dimensions = tuple(
        settings.get(f"BlockRecurrentTransformer.{name}")
        for name in ("width", "num_heads", "head_size", "feed_forward_size")
    )
    for size in SIZES:
        # A baseline may have one layer in twelve more.
        allowed = (size.layers,) if is_recurrent else (size.layers, size.layers * 13 // 12)
        if dimensions == size[2:] and layers in allowed:
            return size.name
    return None


CORPORA = {
    "wikitext103": "WikiText-103",
    "penn_treebank": "Penn Treebank",
    "one_billion_word": "One Billion Word",
}
"""Corpora of words, by what the names of their stores begin with."""


def _corpus(run, family):
    if run.corpus.startswith("pg19"):
        named = {"bytes": "PG19 bytes", "T5": "PG19 tokens", "pretrained": "PG-19"}
        return named.get(family, "PG19 SPM")
    if run.corpus.startswith("wikitext103") and family == "pretrained":
        return "WikiText-103 raw"
    for begin, name in CORPORA.items():
        if run.corpus.startswith(begin) and family == "words":
            return name
    if run.corpus.startswith("enwik8"):
        return "enwik8"
    if run.corpus.startswith("arxiv"):
        return "arXiv"
    return "GitHub" if run.corpus.startswith("github") else run.corpus


def _vocabulary(run, settings, model):
    """Returns family and size, as Table 5 has them."""
    named = settings.get("Corpus.vocabulary") or settings.get("FirstTokens.vocabulary")
    name = str(named or "of the source")
    if name in ("bytes", "@ByteVocabulary()"):
        return "bytes", "256"
    of_body = model.startswith("Pretrained") and name.startswith("bpe:")
    if of_body or name.startswith(("pretrained:", "@PretrainedFolderVocabulary")):
        return "pretrained", str(model_setting(settings, "vocabulary_size") or name)
    if "t5" in name.lower():
        return "T5", "32k"
    if name.startswith(("words:", "@WordVocabulary")):
        return "words", str(model_setting(settings, "vocabulary_size", 0))
    found = re.search(r"pg19train_bpe_(\d+)", name)
    entries = int(found[1]) if found else model_setting(settings, "vocabulary_size", 0)
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
