"""Tables and figures of Adding Recurrence to Pretrained Transformers, as data.

Source: Yoshida, Ettinger and Gimpel 2020, Adding Recurrence to Pretrained Transformers for Improved
Efficiency and Context Size, arXiv:2008.07027. Its figures print no numbers: the points shown for it
are those of its tables.
"""

from typing import Any

from brt.reporting.gin_text import Reference
from brt.reporting.papers.form import (
    NOT_PUBLISHED,
    Contrast,
    Curve,
    Paper,
    PaperPlot,
    PaperTable,
    Quantity,
    Row,
)

TITLE = "Adding Recurrence to Pretrained Transformers, arXiv:2008.07027"
WINDOW = 300
WIKITEXT, PG19 = "WikiText-103 raw", "PG-19"
BASELINE, RECURRENT = "GPT-2", "GPT-2 + pooled"

OF_WIKITEXT = {
    BASELINE: {
        0: ("29.00", "30.47"),
        5: ("27.99", "29.36"),
        10: ("27.58", "28.88"),
        30: ("26.72", "27.96"),
        50: ("26.17", "27.31"),
    },
    RECURRENT: {
        0: ("27.70", "29.01"),
        5: ("26.88", "28.12"),
        10: ("26.51", "27.77"),
        30: ("25.90", "27.12"),
        50: ("25.53", "26.73"),
    },
}
OF_PG19 = {
    BASELINE: {
        0: ("172.25", "147.71"),
        5: ("165.93", "142.30"),
        10: ("162.66", "139.49"),
        30: ("156.21", "134.30"),
        50: ("152.64", "131.25"),
        75: ("149.54", "128.46"),
        100: ("147.05", "126.51"),
        150: ("143.62", "123.53"),
        200: ("141.14", "121.40"),
    },
    RECURRENT: {
        0: ("155.27", "133.02"),
        5: ("150.00", "128.78"),
        10: ("147.53", "127.05"),
        30: ("142.35", "122.22"),
        50: ("140.10", "119.93"),
    },
}
"""Perplexity per word on validation and test by model and overlap (Tables 1 and 2)."""

FLOPS = {
    0: "1.75e8",
    5: "1.78e8",
    10: "1.81e8",
    30: "1.94e8",
    50: "2.10e8",
    75: "2.33e8",
    100: "2.62e8",
    150: "3.50e8",
    200: "5.25e8",
}
"""FLOPs per token by overlap, as Tables 1 and 2 print them."""


def flops_per_token(window: int, overlap: int = 0, layers: int = 12, width: int = 768) -> float:
    """Returns the operations of a window's layers for each of its new tokens, without the logits.

    Source: the numbers of Tables 1 and 2, which the matrices of the layers and the attention of a
    window give; the recurrence counts nothing there.
    """
    matrices = 2 * 12 * layers * width**2
    attention = 2 * layers * window * width
    return (matrices + attention) * window / (window - overlap)


def positions_read(tokens: int, window: int, overlap: int) -> int:
    """Returns the positions that windows over a text are computed for; more than `tokens` is waste.

    Each position attends to O(window) others. With the full overlap of window - 1 a text of N
    tokens takes O(N window^2) time, with none O(N window); a recurrent network takes O(N).

    Source: section 4.1, which leaves out the sizes of the models.
    """
    more = -(-max(tokens - window, 0) // (window - overlap))
    return (1 + more) * window


def wasted(window: int, overlap: int) -> float:
    """Returns the share of the computation of a long text that is spent on what was read before."""
    return overlap / window


_SIZES = {"num_layers": 12, "width": 768, "num_heads": 12}
_NETWORK = {"feed_forward_size": 3072}
BODIES = {
    "GPT2": ("gpt2", {"vocabulary_size": 50_257, "num_positions": 1024}),
    "BERT": ("bert-base-cased", _NETWORK | {"vocabulary_size": 28_996, "num_positions": 512}),
    "RoBERTa": ("roberta-base", _NETWORK | {"vocabulary_size": 50_265, "num_positions": 514}),
    "DeBERTa": (
        "deberta-v3-base",
        _NETWORK
        | {"vocabulary_size": 128_100, "num_positions": 512, "buckets": 256}
        | {"absolute_positions": False, "shared_keys": True, "norm_relative": True},
    ),
    "T5": ("t5-base", _NETWORK | {"vocabulary_size": 32_128, "head_size": 64}),
}
"""Pretrained bodies of the papers: folder, and sizes besides those that all of them have."""


def pretrained(model: str, body: str, *memories: str) -> dict:
    """Returns the bindings of a model around a pretrained body that begins with its folder's."""
    folder, sizes = BODIES[body]
    found: dict[str, Any] = {f"{body}.{name}": value for name, value in (_SIZES | sizes).items()}
    found |= {"Pretrained.folder": folder, f"{model}.body": Reference(f"@{body}")}
    return found | {f"{model}.memories": tuple(Reference(f"@{memory}") for memory in memories)}


FINE_TUNED_TOKENS = 2 * 118_200_000
"""Of 2 epochs (section 5). WikiText-103 has 117.9M tokens of GPT-2; 1,250 books of 69,000 words
(section 5) have 118.5M, at 1.374 tokens a word, as counted in novels."""


def fine_tuning(position: Any) -> dict:
    """Returns the settings of the language models, for the position of a run.

    The rate is not published. The rows of a step are an assumption of brt's configs.
    """
    tokens_per_step = 4 * 20 * position.segment_length
    found = {
        "Trainer.optimizer": Reference("@adamw"),
        "Trainer.schedule": Reference("@constant_rate"),
        "constant_rate.value": NOT_PUBLISHED,
        "constant_rate.warmup_steps": 100,
        "Trainer.steps": FINE_TUNED_TOKENS // tokens_per_step,
        "Trainer.tokens_per_step": tokens_per_step,
        "Trainer.segments_per_step": 20,
    }
    if position.corpus == PG19:
        found["FirstDocuments.first"] = {"train": 1250}
        found["FirstTokens.first"] = {"validation": 15_000}
    if position.system != RECURRENT:
        return found | pretrained("PretrainedLanguageModel", "GPT2")
    found |= {"PooledMemory.layer": 2, "PooledMemory.hidden": (200, 200, 200)}
    return found | pretrained("PretrainedLanguageModel", "GPT2", "PooledMemory")


LABELLED = {"Trainer.stream": "labelled", "Trainer.labelled": Reference("@LabelledDocuments")}


def questions(position: Any) -> dict:
    """Returns the settings of Table 3, for the position of a run.

    The schedule, the questions of a step and how many windows are read are assumptions of brt's
    configs.
    """
    found = LABELLED | {
        "LabelledDocuments.targets": "spans",
        "PretrainedReader.targets": "spans",
        "Trainer.optimizer": Reference("@adamw"),
        "Trainer.schedule": Reference("@linear"),
        "linear.maximum": 2e-5,
        "linear.warmup_steps": 100,
        "Trainer.steps": 4 * 30_000 // 16,
        "HotpotQA.questions": 30_000,
        "Trainer.segments_per_step": 6,
        "LabelledDocuments.alignment": "left",
    }
    if position.system == "RoBERTa":
        return found | pretrained("PretrainedReader", "RoBERTa")
    found |= {"FinalLayerMemory.layer": 2, "FinalLayerMemory.hidden": (768,)}
    return found | pretrained("PretrainedReader", "RoBERTa", "FinalLayerMemory")


def label(system: str, overlap: int) -> str:
    """Returns the first label of a row."""
    name = "recurrent" if system == RECURRENT else "baseline"
    return f"{name}, overlap {overlap}"


def _row(system, overlap, printed):
    where = {"system": system, "window_length": WINDOW, "evaluation_overlap": overlap}
    if system == RECURRENT:  # trained with the overlap it is tested with
        where["overlap"] = overlap
    labels = label(system, overlap), FLOPS[overlap], f"{wasted(WINDOW, overlap):.1%}"
    return Row(labels, printed, where)


def _perplexities(name, title, numbers, corpus, more="", contrasts=()):
    return PaperTable(
        name,
        title,
        f"Perplexity per word, windows of {WINDOW} tokens, of which the last `overlap` are read "
        "again by the next; the baseline is evaluated with overlaps that it was not trained with. "
        "FLOPs are those of the layers for each new token, the recurrence not counted; `wasted` is "
        "the share of them that is spent on tokens that were read before. With the full overlap of "
        "T - 1 a text of N tokens takes O(N T²) time, with none O(N T), and a recurrent network "
        f"O(N) (section 4.1).{more} "
        f"Source: {title.split(', ')[1].split(':')[0]}",
        ("model", "FLOPs/token", "wasted"),
        (
            Quantity("validation", "word_level_perplexity", 2, split="validation"),
            Quantity("test", "word_level_perplexity", 2, split="test"),
        ),
        tuple(
            _row(system, overlap, printed)
            for system, of_system in numbers.items()
            for overlap, printed in of_system.items()
        ),
        {"corpus": corpus},
        contrasts=contrasts,
        settings=fine_tuning,
    )


CONTRASTS = (
    Contrast("Does recurrence replace an overlap of 30?", label(RECURRENT, 0), label(BASELINE, 30)),
    Contrast(
        "Is recurrence with 5 better than an overlap of 50?",
        label(RECURRENT, 5),
        label(BASELINE, 50),
    ),
)
TABLE_1 = _perplexities("arpt_table_1", "ARPT, Table 1: WikiText-103", OF_WIKITEXT, WIKITEXT)
TABLE_2 = _perplexities(
    "arpt_table_2",
    "ARPT, Table 2: PG-19",
    OF_PG19,
    PG19,
    " Section 5.1 adds of 5 tokens with recurrence that they beat an overlap of 75, which these "
    "numbers do not show.",
    CONTRASTS,
)

TABLE_3 = PaperTable(
    "arpt_table_3",
    "ARPT, Table 3: HotpotQA",
    "Answer F1 and exact match on the development set of the distractor setting, after 30,000 "
    "training questions; windows of 512 tokens that begin with the question. Source: Table 3",
    ("model",),
    (
        Quantity("F1", "answer_f1", 2, {"corpus": "HotpotQA"}, divisor=0.01),
        Quantity("exact match", "exact_match", 2, {"corpus": "HotpotQA"}, divisor=0.01),
    ),
    (
        Row(("RoBERTa, disjoint windows",), ("48.17", "43.55"), {"system": "RoBERTa"}),
        Row(("RoBERTa, recurrent",), ("49.12", "44.55"), {"system": "RoBERTa + pooled"}),
    ),
    settings=questions,
)

KEPT = "studies/topics/divergence, kept"
TOPICS = PaperTable(
    "arpt_topics",
    "ARPT, section 5.3.1: topics of continuations",
    "Mean Jensen-Shannon divergence between the topics of a context and of what is written after "
    "it: 8,000 contexts of 300 tokens, greedy continuations of 30, 20 topics of 5,000 books. The "
    "base of the logarithm is not printed; measured ones have base 2. The baseline begins with one "
    "token of the context. The paper finds the recurrent one lower for at least 60 % of the "
    "contexts, p < 0.00001. The continuations themselves (Tables 4 and 5) are the study "
    "`continuations`. Source: section 5.3.1",
    ("model",),
    (
        Quantity("divergence", KEPT, 4),
        Quantity("state cleared", "studies/topics/divergence, cleared", 4, is_printed=False),
        Quantity("kept lower", "studies/topics/lower_than, cleared", 3, is_printed=False),
    ),
    (
        Row(("baseline",), ("0.5951",), {"system": BASELINE}),
        Row(("recurrent",), ("0.5331",), {"system": RECURRENT}),
    ),
    {"window_length": WINDOW},
    settings=fine_tuning,
)

TABLES = (TABLE_1, TABLE_2, TABLE_3, TOPICS)


def _validation(system, *overlaps):
    return tuple(OF_PG19[system][overlap][0] for overlap in overlaps)


def _in_units(*overlaps):
    return tuple(float(FLOPS[overlap]) / 1e8 for overlap in overlaps)


PUBLISHED_SIZE = {"size": "base", "corpus": PG19}
"""Of the figures: points of other bodies would stand between theirs without a word."""

FIGURE_4 = PaperPlot(
    "arpt_figure_4",
    "ARPT, Figure 4: window size",
    "Validation perplexity per word of PG-19 by the size of the window, without overlap; bodies of "
    "the size of GPT-2 small. The paper draws windows of 200 to 600 tokens and prints no numbers: "
    "its points here are those of Table 2. Source: Figure 4 and Table 2",
    "window_length",
    "tokens of a window",
    "perplexity per word",
    tuple(
        Curve(
            "recurrent" if system == RECURRENT else "baseline",
            (float(WINDOW),),
            _validation(system, 0),
            PUBLISHED_SIZE | {"system": system, "evaluation_overlap": 0},
            "word_level_perplexity",
        )
        for system in (BASELINE, RECURRENT)
    ),
    log_x=False,
    split="validation",
)


OVERLAPPED = (5, 10, 30, 50)


def _by_cost(name, system, *overlaps, **own):
    """Models by their FLOPs; a recurrent one is evaluated with the overlap it is trained with."""
    if system == RECURRENT:
        own["overlap"] = {*overlaps}
    return Curve(
        name,
        _in_units(*overlaps),
        _validation(system, *overlaps),
        PUBLISHED_SIZE | {"system": system, "evaluation_overlap": {*overlaps}} | own,
        "word_level_perplexity",
    )


FIGURE_5 = PaperPlot(
    "arpt_figure_5",
    "ARPT, Figure 5: perplexity and cost",
    "Validation perplexity per word of PG-19 by FLOPs per token. A measured curve has one overlap "
    "o and windows of 200 to 600 tokens; o > 0 is Table 2's, windows of 300 with overlaps of 5 to "
    "50. Wide steps are Pareto frontiers: for a point above one, another point costs less and "
    "is better. The paper says that all of its recurrent points lie on its frontier, and prints no "
    "numbers: its points here are those of Table 2, windows of 300. Source: Figure 5 and Table 2",
    "flops",
    "10^8 FLOPs per token",
    "perplexity per word",
    (
        _by_cost("recurrent, o = 0", RECURRENT, 0),
        *(_by_cost(f"baseline, o = {overlap}", BASELINE, overlap) for overlap in (0, 10, 30, 50)),
        _by_cost("recurrent, o > 0", RECURRENT, *OVERLAPPED, window_length=WINDOW),
    ),
    log_x=False,
    order="window_length",
    split="validation",
    frontier=True,
)

ADDING_RECURRENCE = Paper(
    "adding_recurrence",
    TITLE,
    TABLES,
    (FIGURE_4, FIGURE_5),
    about={"model": {"PretrainedLanguageModel", "PretrainedReader"}},
)
