"""Streamed text equals the decoded text of all tokens and comes as early as it is certain."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pieces import train_pieces

from brt.data.vocabularies.base import ByteVocabulary
from brt.data.vocabularies.characters import CharacterVocabulary
from brt.data.vocabularies.pretrained import ByteLevelBpeVocabulary, WordPieceVocabulary
from brt.data.vocabularies.subwords import SubwordVocabulary
from brt.data.vocabularies.words import WordVocabulary
from brt.generation.streaming_text import CONTEXT, StreamingText

TEXT = "Call me Ishmael. Some years ago—never mind how long €𝄞 precisely—having little\n" * 9
LINE = "call me some years ago never mind how long"
KINDS = ("bytes", "symbols", "characters", "pieces", "spaces", "words", "sentences")
EXTRAS = ("bpe", "wordpiece", "subwords")


def build(kind, folder):
    path = folder / kind
    if kind == "bytes":
        return ByteVocabulary()
    if kind in ("pieces", "spaces"):
        own = {"model_type": "bpe", "remove_extra_whitespaces": kind == "pieces"}
        return train_pieces(path, 300, [LINE], byte_fallback=True, **own)
    if kind == "bpe":
        symbols = [*map(chr, range(33, 127)), "Ġ", "Ċ", *"âĤ¬ðĿĦŀ"]
        path.mkdir()
        (path / "vocab.json").write_text(json.dumps({s: i for i, s in enumerate(symbols)}))
        (path / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")
        return ByteLevelBpeVocabulary(str(path))
    text = {
        "symbols": "".join(f"0x{code:02x} 1\n" for code in (32, 10, 97, 226, 130, 172)) + "<unk> 0",
        "characters": "U+0020 3\nU+0061 2\nU+20AC 1\nU+FFFD 1\n",
        "words": "the\ncat\n<eos>\n<unk>\n",
        "sentences": "<S>\nthe\ncat\n<UNK>\n",
        "wordpiece": "[UNK]\nthe\n##ing\n.\ncat\n",
        "subwords": "### SubwordTextEncoder\n### Metadata: {}\n'whale'\n'the_'\n's'\n",
    }[kind]
    path = folder / f"{kind}.subwords"
    path.write_text(text)
    if kind == "words":
        return WordVocabulary(str(path))
    if kind == "sentences":
        line = dict(unknown="<UNK>", before_line="<S>", after_line="<S>")
        return WordVocabulary(str(path), **line)
    classes = {"wordpiece": WordPieceVocabulary, "subwords": SubwordVocabulary}
    return classes.get(kind, CharacterVocabulary)(str(path))


@pytest.fixture(scope="module")
def vocabulary_of(tmp_path_factory):
    made, folder = {}, tmp_path_factory.mktemp("vocabularies")

    def make(kind):
        if kind in EXTRAS:
            library = "tensorflow_datasets" if kind == "subwords" else "tokenizers"
            pytest.importorskip(library, reason="an optional vocabulary's library")
        if kind not in made:
            made[kind] = build(kind, folder)
        return made[kind]

    return make


def streamed(vocabulary, ids, **options):
    """What comes with each token, and at the end."""
    stream, pieces = StreamingText(vocabulary, **options), []
    for token in ids:
        if not stream.stopped:
            pieces.append(stream.push(token))
    return [*pieces, stream.finish()]


@pytest.mark.filterwarnings("ignore")  # TensorFlow's own, while it is imported
@pytest.mark.parametrize("kind", KINDS + EXTRAS)
@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.data())
def test_the_pieces_joined_are_the_text_of_all_tokens(kind, vocabulary_of, data):
    vocabulary = vocabulary_of(kind)
    some = st.integers(0, vocabulary.size - 1)
    if data.draw(st.booleans()):  # few ids, so that bytes of one character meet
        some = st.sampled_from(data.draw(st.lists(some, min_size=1, max_size=4)))
    ids = data.draw(st.lists(some, max_size=3 * CONTEXT))
    assert "".join(streamed(vocabulary, ids)) == vocabulary.decode(ids)
    cut = data.draw(st.integers(0, len(ids)))
    # What was said before is not said again, but for a character that has become another one.
    whole, before = vocabulary.decode(ids), vocabulary.decode(ids[:cut]) if cut else ""
    while not whole.startswith(before):
        before = before[:-1]
    new = "".join(streamed(vocabulary, ids[cut:], before=ids[:cut]))
    assert before + new == whole


def test_a_character_comes_whole_and_as_soon_as_its_last_byte():
    pieces = streamed(ByteVocabulary(), "a€𝄞b".encode())
    assert pieces == ["a", "", "", "€", "", "", "", "𝄞", "b", ""]


def test_a_character_that_never_ends_is_replaced_at_the_end():
    pieces = streamed(ByteVocabulary(), "a€".encode()[:3])
    assert pieces == ["a", "", "", "\ufffd"]
    assert "".join(streamed(ByteVocabulary(), [226, 130, 97])) == "\ufffda"


@pytest.mark.parametrize("kind", ["bytes", "pieces"])
def test_a_long_text_costs_no_more_per_token_than_a_short_one(kind, vocabulary_of, monkeypatch):
    vocabulary, lengths = vocabulary_of(kind), []
    ids, decode = vocabulary.encode(TEXT.encode(), "text"), vocabulary.decode
    monkeypatch.setattr(
        vocabulary, "decode", lambda ids: lengths.append(len(ids)) or decode(ids), raising=False
    )
    text = "".join(streamed(vocabulary, ids))
    assert text == decode(ids) and len(ids) > 5 * CONTEXT
    assert max(lengths) <= CONTEXT + 8


def test_pieces_after_a_prompt_begin_with_their_space(vocabulary_of):
    vocabulary = vocabulary_of("pieces")
    me = vocabulary.encode(b"me", "text")
    assert "".join(streamed(vocabulary, me)) == "me"
    assert "".join(streamed(vocabulary, me, before=me)) == " me"


# Stop sequences.


@settings(deadline=None, derandomize=True)
@given(
    st.lists(st.sampled_from("ab"), max_size=40).map("".join),
    st.lists(st.text("ab", min_size=1, max_size=5), max_size=3),
)
def test_text_ends_where_the_first_stop_sequence_begins(text, stop):
    pieces = streamed(ByteVocabulary(), text.encode(), stop=stop)
    # The one that is complete first counts, and of those the one that begins first.
    for length in range(len(text) + 1):
        begun = [text[:length].find(s) for s in stop if s in text[:length]]
        if begun:
            assert "".join(pieces) == text[: min(begun)]
            assert len(pieces) == length + 1
            return
    assert "".join(pieces) == text


def test_only_a_possible_stop_sequence_is_held_back():
    assert streamed(ByteVocabulary(), b"xENx", stop=["END"]) == ["x", "", "", "ENx", ""]
    assert streamed(ByteVocabulary(), b"xEN", stop=["END"]) == ["x", "", "", "EN"]
    assert streamed(ByteVocabulary(), b"xENDx", stop=["END"]) == ["x", "", "", "", ""]
