"""A loss per token, byte, character and word, by the paper's arithmetic."""

import math

import numpy as np
import pytest

from brt.data.vocabularies.base import ByteVocabulary
from brt.data.vocabularies.report import white_space_caveat
from brt.evaluation.scores import per_text, per_token

PG19_WORDS = 6_966_499

TABLE_5 = [
    ("T5 32k", 10_523_460, 1.5106, 3.525, 40.08),
    ("LaMDA 32k", 12_053_681, 1.7302, 3.121, 42.23),
    ("STE 32k", 11_097_364, 1.5930, 3.352, 40.49),
    ("SPM 32k, first", 10_229_476, 1.4684, 3.647, 40.93),
    ("SPM 128k", 9_638_472, 1.3835, 3.830, 39.37),
    ("SPM 96k", 9_711_259, 1.3940, 3.801, 39.36),
    ("SPM 64k", 9_856_687, 1.4149, 3.766, 40.18),
    ("SPM 32k", 10_229_476, 1.4684, 3.647, 40.93),
    ("SPM 8k", 11_559_455, 1.6593, 3.289, 43.94),
    ("SPM 4k", 12_622_101, 1.8118, 3.021, 44.43),
    ("SPM 1k", 15_865_499, 2.2774, 2.477, 49.91),
    ("SPM 512", 18_124_332, 2.6016, 2.125, 46.16),
    ("bytes", 41_288_269, 5.9267, 0.960, 51.61),
]
"""Block-Recurrent, Table 5: tokens, scale factor, bits per token, word-level perplexity."""


@pytest.mark.parametrize(("name", "tokens", "scale", "bits", "published"), TABLE_5)
def test_every_row_of_table_5_follows_from_its_token_count(name, tokens, scale, bits, published):
    nats = bits * math.log(2) * tokens
    manifest = {"tokens": tokens, "words": PG19_WORDS, "bytes": 0, "characters": 0}
    figures = per_text(nats, manifest)
    assert figures["word_level_perplexity"] == pytest.approx(published, abs=0.01)
    # The table's last digit is not always that of its own counts: 1.39399 stands as 1.3940.
    assert figures["tokens_per_word"] == pytest.approx(scale, abs=1e-4)


def test_figures_of_a_text_are_sums_over_its_own_counts():
    rng = np.random.default_rng(0)
    text = "naïve words,  and\nmore of them " * 5
    tokens = len(text.encode())
    nats = rng.random(tokens)
    manifest = dict(tokens=tokens, bytes=tokens, characters=len(text), words=len(text.split()))
    figures = per_text(nats.sum(), manifest)
    assert figures["bits_per_byte"] == pytest.approx(np.mean(nats) / math.log(2))
    assert figures["bits_per_character"] == pytest.approx(nats.sum() / math.log(2) / len(text))
    # The geometric mean of 1 / p over words.
    probability = np.prod(np.exp(-nats.astype(np.longdouble)))
    expected = float(probability ** (-1 / np.longdouble(len(text.split()))))
    assert figures["word_level_perplexity"] == pytest.approx(expected)
    assert per_token(nats.sum(), tokens)["perplexity"] == pytest.approx(
        float(probability ** (-1 / np.longdouble(tokens)))
    )


class OneSpace:
    """Words joined by single spaces, as a SentencePiece model that normalises white space."""

    name = "one space"

    def __init__(self):
        self.words = []

    def encode(self, data, title):
        self.words = data.decode().split()
        return np.arange(len(self.words))

    def decode(self, ids):
        return " ".join(self.words[i] for i in ids)


def test_the_caveat_names_the_white_space_that_is_not_predicted():
    kept = white_space_caveat(ByteVocabulary(), np.frombuffer(b"some words of it", np.uint8))
    assert "bytes" in kept
    vocabulary = OneSpace()
    lost = white_space_caveat(vocabulary, vocabulary.encode(b"a few words of it", "t"))
    assert "tabs, newlines, double spaces" in lost
