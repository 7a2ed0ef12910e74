"""Choices of data configs that decide what a figure may be compared with."""

import pytest
from paths import CONFIGS

from brt.reporting.gin_text import read_gin_file

OWN = {"text", "own_text"}  # their vocabulary may be any
CORPORA = sorted({path.stem for path in (CONFIGS / "corpora").glob("*.gin")} - OWN)
SIZES = {
    **dict.fromkeys(("pg19", "pg19_seqio", "arxiv", "github"), 32_128),  # T5's model and ids of it
    "pg19_spm32k": 32_000,
    "pg19_bytes": 260,  # as google-research/meliad
    "enwik8_symbols": 204,
    "text8_symbols": 27,
    "penn_treebank_words": 10_000,
    "wikitext103_words": 267_735,
    "one_billion_word_words": 793_471,
    **dict.fromkeys(("wikitext103_raw", "pg19_first"), 50_257),  # GPT-2
    "books_pieces": 1000,
    "code_pieces": 2000,
}
"""Ids of the published vocabularies; 256 bytes otherwise."""


@pytest.mark.parametrize("name", CORPORA)
def test_a_corpus_has_the_ids_of_its_published_vocabulary(name):
    bound = read_gin_file(f"configs/corpora/{name}.gin")
    assert bound["vocabulary_size"] == SIZES.get(name, 256)
    assert (bound["Corpus.vocabulary"] == "bytes") == (name not in SIZES or name == "pg19_bytes")
    # Words with <unk> for rare ones, or the text as it was written.
    assert bound.get("WikiText103.raw", False) == (name == "wikitext103_raw")


@pytest.mark.parametrize(
    ("reader", "length"),
    [("roberta_spans", 512), *((r, 502) for r in ("bert", "roberta", "deberta", "t5"))],
)
def test_readers_fill_the_512_positions_of_their_encoders(reader, length):
    bound = read_gin_file(f"configs/readers/{reader}.gin")
    assert bound["Trainer.segment_length"] == length  # the others have 10 memory tokens
