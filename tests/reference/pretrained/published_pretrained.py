"""Published hyperparameters of memories around pretrained models, as in `published_numbers`.

Adding Recurrence to Pretrained Transformers gives no code: what it does not say is `own`.
"""

from published_numbers import Numbers, of_model, own, ref, told

GPT2_SMALL = told(
    "gpt2 config.json",
    {
        "vocabulary_size": 50_257,
        "GPT2.num_layers": 12,
        "GPT2.width": 768,
        "GPT2.num_heads": 12,
        "GPT2.num_positions": 1024,
    },
)
MODEL = own(
    {
        "Trainer.model": ref("PretrainedLanguageModel"),
        "PretrainedLanguageModel.body": ref("GPT2"),
        "Pretrained.folder": None,
    }
)
FINE_TUNING = told(
    "section 5",
    {
        "Trainer.optimizer": ref("adamw"),
        "adamw.weight_decay": 0.0,
        "constant_rate.warmup_steps": 100,
    },
) | told("table 1", {"Trainer.segments_per_step": 20, "Trainer.segment_length": 300})
CHOSEN = told("section 5: 2 epochs", {"Trainer.steps": 9850})
CHOSEN |= told("section 5: 2 million tokens", {"Trainer.eval_every": 83})
CHOSEN |= told("section 5: early stopping", {"CheckpointPolicy.keep_best": True})
CHOSEN |= own(
    {
        "Trainer.schedule": ref("constant_rate"),
        "constant_rate.value": 5e-5,
        "Trainer.remat_segments": True,
        "Trainer.tokens_per_step": 24_000,
        "Trainer.evaluation": ref("Evaluation()"),
        "Trainer.checkpoints": ref("CheckpointPolicy()"),
        "CheckpointPolicy.every": 400,
        "CheckpointPolicy.patience": 5,
    }
)
PG19_FIRST = told(
    "section 5",
    {
        "FirstTokens.first": {"validation": 15_000},
        "FirstDocuments.first": {"train": 1_250},
        "FirstTokens.vocabulary": "bpe:vocabularies/gpt2",
    },
) | own(
    {
        "Trainer.corpus": ref("Corpus()"),
        "Corpus.store": "stores/pg19_first",
        "Corpus.source": ref("FirstTokens()"),
        "Corpus.vocabulary": None,
        "FirstTokens.source": ref("FirstDocuments()"),
        "FirstDocuments.source": ref("TextFiles()"),
        "TextFiles.path": "data/pg19/{split}",
    }
)
POOLED = told("section 5", {"PooledMemory.hidden": (200, 200, 200), "PooledMemory.layer": 2})
POOLED |= told("section 3.1", {"PooledMemory.pooling": "mean", "PooledMemory.num_vectors": 1})
POOLED |= own(
    {
        "PretrainedLanguageModel.memories": (ref("PooledMemory"),),
        "PooledMemory.pooled": "all",
    }
)


def model(*parts: Numbers) -> Numbers:
    """The numbers of GPT-2 small on books, and of what is added to it."""
    found = MODEL | FINE_TUNING | CHOSEN | PG19_FIRST | of_model("GPT2", GPT2_SMALL)
    for part in parts:
        found |= part
    return found


BOOKS = "+corpora/pg19_first.gin"
HEADERS = {
    f"pretrained/gpt2.gin{BOOKS}": model(told("table 2", {"PretrainedLanguageModel.overlap": 0})),
    f"pretrained/gpt2_pooled.gin{BOOKS}": model(POOLED),
}
WIKITEXT_RAW = told(
    "section 5",
    {"WikiText103.raw": True, "Corpus.vocabulary": "bpe:vocabularies/gpt2"},
) | own(
    {
        "Trainer.corpus": ref("Corpus()"),
        "Corpus.store": "stores/wikitext103_raw",
        "Corpus.source": ref("WikiText103()"),
        "WikiText103.path": "data/wikitext-103",
        "WikiText103.articles": True,
    }
)
OF_PG19 = 0, 5, 10, 30, 50, 75, 100, 150, 200
OF_WIKITEXT = 0, 5, 10, 30, 50
WINDOWS = 200, 300, 400, 500, 600


def _on_wikitext(numbers):
    """The same numbers on WikiText-103."""
    return {name: n for name, n in numbers.items() if name not in PG19_FIRST} | WIKITEXT_RAW


def _overlapped(table, overlap, length=300):
    """A baseline that is evaluated with an overlap."""
    if not overlap:
        return model()
    scope = "evaluation/PretrainedLanguageModel"
    evaluated = {f"{scope}.overlap": overlap, "Evaluation.segment_length": length - overlap}
    again = {"Evaluation.model": ref(scope), f"{scope}.body": ref("GPT2")}
    return model(told(table, evaluated), own(again))


def _recurrent(table, overlap):
    """A recurrent model that is trained and evaluated with an overlap."""
    length = 300 - overlap
    lengths = {"PretrainedLanguageModel.overlap": overlap, "Trainer.segment_length": length}
    numbers = model(POOLED, told(table, lengths), own({"Trainer.tokens_per_step": 80 * length}))
    return numbers | told("section 5: 2 epochs", {"Trainer.steps": 236_400_000 // (80 * length)})


def _of_window(length, numbers):
    """The same numbers on windows of another length, with as many tokens in all."""
    tokens = 80 * length
    of_step = own({"Trainer.tokens_per_step": tokens, "Trainer.eval_every": 2_000_000 // tokens})
    steps = told("section 5: 2 epochs", {"Trainer.steps": 236_400_000 // tokens})
    return numbers | told("figure 4", {"Trainer.segment_length": length}) | of_step | steps


def _at_rate(rate, *parts):
    """A model with one of the candidates for its rate."""
    return _on_wikitext(model(*parts, own({"constant_rate.value": rate})))


SWEEPS = {
    "arpt_tables": [
        *(_on_wikitext(_overlapped("table 1", overlap)) for overlap in OF_WIKITEXT),
        *(_on_wikitext(_recurrent("table 1", overlap)) for overlap in OF_WIKITEXT),
        *(_overlapped("table 2", overlap) for overlap in OF_PG19),
        *(_recurrent("table 2", overlap) for overlap in OF_WIKITEXT),
    ],
    "arpt_windows": [
        *(
            _of_window(length, _overlapped("figure 5", overlap, length))
            for length in WINDOWS
            for overlap in (0, 10, 30, 50)
        ),
        *(_of_window(length, model(POOLED)) for length in WINDOWS),
    ],
    "arpt_rates": [
        *(_at_rate(rate) for rate in (2e-5, 5e-5, 1e-4)),
        *(_at_rate(rate, POOLED) for rate in (2e-5, 5e-5, 1e-4)),
    ],
}
