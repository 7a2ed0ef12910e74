"""Recipes of the Block-Recurrent paper's numbers: optimizer, schedule, budget, vocabulary.

Source: section 4.1 and appendix C of arXiv:2203.07852; what these leave open is an assumption of
brt's configs, and named as one. Appendix C.3 says what follows from it: perplexities of models that
differ in these choices cannot be compared.
"""

from typing import Any, NamedTuple

from brt.reporting.gin_text import Reference
from brt.reporting.papers.form import PaperTable, Quantity, Row


class Recipe(NamedTuple):
    """The training of a group of published numbers.

    Attributes:
        experiment: the numbers, and the tables they stand in.
        settings: bindings that say it; those not named have brt's defaults.
        assumed: names of settings that the paper does not give.
        vocabulary: as the paper names it.
        vocabulary_here: the vocabulary of a `PaperPosition` that stands for it; None for any.
        split: that is reported.
        printed: bits per token of Rec:fixed:skip with 160M parameters.
        words: word-level perplexity that is printed of the same model, or None.
    """

    experiment: str
    settings: dict
    vocabulary: str
    vocabulary_here: str | None
    split: str
    printed: str
    words: str | None = None
    assumed: tuple[str, ...] = ()


_COMMON = {
    "Trainer.optimizer": Reference("@adafactor"),
    "Trainer.schedule": Reference("@rsqrt"),
    "Trainer.steps": 500_000,
    "Trainer.tokens_per_step": 131_072,
    "rsqrt.multiplier": 1.0,
    "rsqrt.warmup_steps": 1000,
    "BlockRecurrentTransformer.dropout": 0.05,
    "BlockRecurrentTransformer.activation_dtype": "bfloat16",
}
_COSINE = {"Trainer.schedule": Reference("@cosine"), "cosine.warmup_steps": 1000}

TOKENS = Recipe(
    "PG19 tokens: Tables 1, 3 and 5", _COMMON, "T5, 32k", "T5 32k", "test", "3.525", "40.08"
)
BYTES = Recipe("PG19 bytes: Table 1", _COMMON, "bytes", "bytes 256", "test", "0.952")
SENTENCEPIECE = Recipe(
    "PG19, its own vocabularies: Table 5", _COMMON, "PG19 SPM, 32k", None, "test", "3.647", "40.93"
)
ARXIV = Recipe(
    "arXiv: Table 1",
    _COMMON | {"rsqrt.multiplier": 0.5},
    "LaMDA, 32k (not public; here T5's)",
    "T5 32k",
    "test",
    "1.24",
    assumed=("Trainer.steps",),
)
GITHUB = Recipe(
    "GitHub: Table 1",
    _COMMON
    | _COSINE
    | {
        "cosine.maximum": 0.005,
        "cosine.minimum": 0.0005,
        "Trainer.steps": 250_000,
        "Trainer.tokens_per_step": 524_288,
    },
    "LaMDA, 32k (not public; here T5's)",
    "T5 32k",
    "validation",
    "0.976",
    assumed=("cosine.minimum",),
)
SCALING = Recipe(
    "PG19, sizes: Tables 2 and 4",
    _COMMON | _COSINE | {"cosine.maximum": 0.01, "cosine.minimum": 0.001},
    "PG19 SPM, 32k",
    "PG19 SPM 32k",
    "test",
    "3.59",
    assumed=("Trainer.steps", "Trainer.tokens_per_step"),
)
RECIPES = (TOKENS, BYTES, SENTENCEPIECE, ARXIV, GITHUB, SCALING)
OF_CORPUS = {"PG19 tokens": TOKENS, "PG19 bytes": BYTES, "arXiv": ARXIV, "GitHub": GITHUB}


def by_corpus(position: Any) -> dict:
    """Returns the settings of Tables 1, 3 and 5, for the `PaperPosition` of a run.

    A corpus of one's own has those of PG19.
    "vocabulary" among them is that of the position.
    """
    return _of(OF_CORPUS.get(position.corpus, SENTENCEPIECE), position)


def by_size(position: Any) -> dict:
    """Returns the settings of Tables 2 and 4, for the position of a run; likewise."""
    return _of(SCALING, position)


def _of(recipe, position):
    architecture = {
        "BlockRecurrentTransformer.window": 512,
        "RecurrentCell.num_states": 512,
        "Trainer.segment_length": 4096,
    }
    if position.system.startswith(("XL:", "Memorizing")):
        architecture["Trainer.segment_length"] = position.window
    if position.system.startswith("Memorizing"):
        architecture["BlockRecurrentTransformer.memorizing_layers"] = (8,)
        architecture["ExternalMemory.neighbours"] = 128
        architecture["ExternalMemory.search"] = "bucketed"
    if position.states:
        layers = (9,) if position.layers < 24 else (9, 19)
        architecture["BlockRecurrentTransformer.recurrent_layers"] = layers
    known = position.corpus in OF_CORPUS or position.corpus == "PG19 SPM"
    if known and recipe.vocabulary_here:
        architecture["vocabulary"] = recipe.vocabulary_here
    return recipe.settings | architecture


def _row(recipe: Recipe) -> Row:
    shown = {
        name: (f"{value:,}" if isinstance(value, int) else str(value))
        + ", assumed" * (name in recipe.assumed)
        for name, value in recipe.settings.items()
    }
    if recipe.settings["Trainer.schedule"] == "@cosine":
        rate = f"cosine, {shown['cosine.maximum']} to {shown['cosine.minimum']}"
        warmup = shown["cosine.warmup_steps"]
    else:
        rate = f"{shown['rsqrt.multiplier']} / sqrt(step)"
        warmup = shown["rsqrt.warmup_steps"]
    labels = (
        recipe.experiment,
        recipe.settings["Trainer.optimizer"].strip("@").capitalize(),
        rate,
        warmup,
        shown["Trainer.steps"],
        shown["Trainer.tokens_per_step"],
        recipe.vocabulary,
        recipe.split,
    )
    return Row(labels, (recipe.printed, recipe.words), None)


CHOICES = PaperTable(
    "choices",
    "What is behind the published numbers",
    "Why they cannot be compared with one another, nor with those of other papers: the same model, "
    "Rec:fixed:skip with 160M parameters, with the vocabulary, optimizer, schedule and budget of "
    "each experiment. On PG19 another vocabulary alone changes 3.525 bits a token to 3.647, "
    "and the cosine, which the paper calls a significant improvement, these to 3.59. "
    "A rate is what multiplies Adafactor's own steps. `assumed`: the paper does not say, brt's "
    "configs do. A measured cell whose run differs from its row's choices says in what. "
    "Source: Appendix C",
    (
        "numbers",
        "optimizer",
        "learning rate",
        "warm-up",
        "steps",
        "tokens a step",
        "vocabulary",
        "split",
    ),
    (Quantity("bits/token"), Quantity("word-level perplexity")),
    tuple(map(_row, RECIPES)),
)
