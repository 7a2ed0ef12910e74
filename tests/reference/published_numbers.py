"""Published hyperparameters by the bindings they belong to, each with the place it was read at.

Transcribed from the papers and the released code, not from configs/. `own` marks what nobody
published: it was chosen here, and is pinned so that it does not change unseen.

Places: a section (3.1), a table, an appendix (app. C) of the paper; a file of the released code,
meliad for Block-Recurrent, `run_*.sh` and `train.py` for Transformer-XL, LM-RMT and its logs for
the Recurrent Memory Transformer.
"""

from typing import NamedTuple

from brt.reporting.gin_text import Reference


class Number(NamedTuple):
    """A value and the place it was read at."""

    value: object
    source: str


Numbers = dict[str, Number]


def told(source: str, numbers: dict) -> Numbers:
    """Numbers that one place gives."""
    return {name: Number(value, source) for name, value in numbers.items()}


def own(numbers: dict) -> Numbers:
    """Numbers chosen here, where nothing is published."""
    return told("own", numbers)


def of_model(model: str, numbers: Numbers) -> Numbers:
    """The numbers with the corpus's `vocabulary_size` as an argument of the model."""
    size = numbers["vocabulary_size"]
    rest = {name: number for name, number in numbers.items() if name != "vocabulary_size"}
    return rest | {f"{model}.vocabulary_size": size}


def ref(name: str) -> Reference:
    """A configurable as gin writes it."""
    return Reference(f"@{name}")


# Corpora.

CORPUS = own({"Trainer.corpus": ref("Corpus()")})
T5 = told("app. C", {"Corpus.vocabulary": "vocabularies/t5.spiece.model"})
T5 |= told("configs/tasks/*.gin", {"vocabulary_size": 32_128})
PG19_BOOKS = told(
    "tasks.py",
    {
        "Corpus.source": ref("TfdsText()"),
        "TfdsText.name": "pg19:0.1.1",
        "TfdsText.text_feature": "book_text",
    },
) | own({"TfdsText.title_feature": "book_title"})
PG19 = CORPUS | PG19_BOOKS | T5 | own({"Corpus.store": "stores/pg19_t5"})
PG19_BYTES = (
    CORPUS
    | PG19_BOOKS
    | told("configs/tasks/*.gin", {"vocabulary_size": 260, "Corpus.vocabulary": "bytes"})
    | own({"Corpus.store": "stores/pg19_bytes"})
)


def pg19_pieces(size: int) -> Numbers:
    """PG19 with a released SentencePiece model of that size."""
    pieces = {
        "Corpus.vocabulary": f"vocabularies/pg19train_bpe_{size}.model",
        "vocabulary_size": size,
    }
    short = f"{size // 1000}k" if size >= 1000 else size
    store = own({"Corpus.store": f"stores/pg19_spm{short}"})
    return CORPUS | PG19_BOOKS | told("table 5; released models", pieces) | store


ARXIV = CORPUS | T5
ARXIV |= told("app. C: LaTeX source", {"SourceTree.suffixes": (".tex",), "SourceTree.header": ""})
ARXIV |= own(
    {
        "Corpus.source": ref("SourceTree()"),
        "Corpus.store": "stores/arxiv_t5",
        "SourceTree.path": "data/arxiv/{split}",
        "SourceTree.exclude": (),
    }
)
CODE = (".py", ".c", ".h", ".cc", ".cpp", ".hpp", ".java", ".js", ".ts", ".go", ".rs")
GITHUB = CORPUS | T5 | told("4.1: files concatenated", {"SourceTree.header": ""})
GITHUB |= own(
    {
        "Corpus.source": ref("SourceTree()"),
        "Corpus.store": "stores/github_t5",
        "SourceTree.path": "data/github",
        "SourceTree.suffixes": CODE,
        "SourceTree.exclude": ("node_modules", "third_party", "__pycache__"),
    }
)


def published_text(source: str, path: str, store: str, vocabulary: str, size: int, where: str):
    """A corpus as distributed: file, vocabulary and the number of its entries."""
    named = {"Corpus.vocabulary": vocabulary, "vocabulary_size": size}
    files = {"Corpus.source": ref(f"{source}()"), "Corpus.store": store, f"{source}.path": path}
    return CORPUS | told(where, named) | own(files)


WIKITEXT = "WikiText103", "data/wikitext-103"
WIKITEXT103 = published_text(
    *WIKITEXT, "stores/wikitext103_words", "words:vocabularies/wikitext103.txt", 267_735,
    "RMT 4; logs",
)  # fmt: skip
ENWIK8 = published_text(
    "Enwik8", "data/enwik8", "stores/enwik8_symbols", "characters:vocabularies/enwik8.txt", 204,
    "RMT 4; logs",
) | told("data_utils.py", {"Enwik8.line_feeds": False})  # fmt: skip
TEXT8 = published_text(
    "Text8", "data/text8", "stores/text8_symbols", "characters:vocabularies/text8.txt", 27,
    "prep_text8.py",
)  # fmt: skip
PTB = published_text(
    "PennTreebank", "data/ptb", "stores/penn_treebank_words",
    "words:vocabularies/penn_treebank.txt", 10_000, "the set as distributed",
)  # fmt: skip
BILLION = "OneBillionWord", "data/1-billion-word-language-modeling-benchmark-r13output"
LM1B = published_text(
    *BILLION, "stores/one_billion_word_words", "words:vocabularies/one_billion_word.txt", 793_471,
    "the supplied vocabulary",
) | told(
    "data_utils.py",
    {
        "WordVocabulary.before_line": "<S>",
        "WordVocabulary.after_line": "<S>",
        "WordVocabulary.unknown": "<UNK>",
    },
)  # fmt: skip
BYTES = "bytes", 256, "own"
SMALL_CORPORA = {
    "text": published_text("TextFiles", "text/{split}", "stores/text_bytes", *BYTES),
    "stdlib": published_text("SourceTree", "stdlib", "stores/stdlib_bytes", *BYTES)
    | own(
        {
            "SourceTree.exclude": (
                *("site-packages", "__pycache__", "test", "tests", "idlelib", "turtledemo"),
                *("encodings", "pydoc_data"),
            )
        }
    ),
    "enwik8": published_text("Enwik8", "data/enwik8", "stores/enwik8_bytes", *BYTES),
    "text8": published_text("Text8", "data/text8", "stores/text8_bytes", *BYTES),
    "wikitext103": published_text(*WIKITEXT, "stores/wikitext103_bytes", *BYTES),
    "wikitext2": published_text("WikiText2", "data/wikitext-2", "stores/wikitext2_bytes", *BYTES),
    "penn_treebank": published_text(
        "PennTreebank", "data/ptb", "stores/penn_treebank_bytes", *BYTES
    ),
    "one_billion_word": published_text(*BILLION, "stores/one_billion_word_bytes", *BYTES),
    "pg19_seqio": CORPUS
    | T5
    | told("tasks.py", {"SeqioText.task": "pg19_tokens"})
    | own(
        {
            "Corpus.store": "stores/pg19_seqio",
            "Corpus.source": ref("SeqioText()"),
            "Corpus.vocabulary": None,
            "SeqioText.title_feature": "title",
            "SeqioText.vocabulary": "vocabularies/t5.spiece.model",
        }
    ),
    "pg19_first": CORPUS
    | told(
        "Adding Recurrence to Pretrained Transformers, 5",
        {
            "FirstDocuments.first": {"train": 1_250},
            "FirstTokens.first": {"validation": 15_000},
            "FirstTokens.vocabulary": "bpe:vocabularies/gpt2",
            "vocabulary_size": 50_257,
        },
    )
    | own(
        {
            "Corpus.store": "stores/pg19_first",
            "Corpus.source": ref("FirstTokens()"),
            "Corpus.vocabulary": None,
            "FirstTokens.source": ref("FirstDocuments()"),
            "FirstDocuments.source": ref("TextFiles()"),
            "TextFiles.path": "data/pg19/{split}",
        }
    ),
}
"""Corpora of no published row, or in another reading; by their file in configs/corpora/."""
