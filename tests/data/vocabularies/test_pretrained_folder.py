"""Tokenizers of Hub folders: the ids of tokenizer.json or of a SentencePiece model."""

import json
import random
import re
import shutil

import pytest
from paths import GOLDEN

from brt.data.vocabularies.named import named_vocabulary

RECORDED = GOLDEN / "pretrained" / "encodings.json"
recorded = pytest.mark.skipif(not RECORDED.exists(), reason="needs recorded encodings")

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cafe", "whale", "##s", "sep", "[", "]"]


@pytest.fixture(autouse=True)
def library():
    return pytest.importorskip("tokenizers", reason='needs pip install -e ".[text]"')


def write(folder, name, content):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps(content), encoding="utf-8")


def vocabulary(folder):
    return named_vocabulary(f"pretrained:{folder}")


@pytest.fixture
def bert(tmp_path, library):
    """A folder with a tokenizer.json of BERT's form, saved with truncation and padding."""
    model = library.models.WordPiece({w: n for n, w in enumerate(WORDS)}, unk_token="[UNK]")
    tokenizer = library.Tokenizer(model)
    tokenizer.normalizer = library.normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = library.decoders.WordPiece()
    tokenizer.add_special_tokens(WORDS[:5])
    tokenizer.post_processor = library.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=16)
    (tmp_path / "bert").mkdir()
    tokenizer.save(str(tmp_path / "bert" / "tokenizer.json"))
    return tmp_path / "bert"


@pytest.fixture(scope="module")
def pieces(tmp_path_factory):
    """A tiny SentencePiece model with T5's special ids."""
    import sentencepiece

    folder = tmp_path_factory.mktemp("pieces")
    (folder / "text").write_text("the whale saw a cafe\na whale ate the cafe\n" * 20)
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "text"),
        model_prefix=str(folder / "model"),
        vocab_size=15,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        minloglevel=2,
    )
    return (folder / "model.model").read_bytes()


def test_a_saved_tokenizer_is_read_without_truncation(bert):
    vocab = vocabulary(bert)
    ids = vocab.encode("Café  WHALES xyz".encode(), "any")
    assert [WORDS[i] for i in ids] == ["cafe", "whale", "##s", "[UNK]"]
    assert (vocab.size, vocab.unknown_id) == (len(WORDS), 1)
    assert vocab.special_ids == {name: n for n, name in enumerate(WORDS[:5])}
    assert vocab.frame == ((2,), (3,))
    assert vocab.tokenizer.spans("whales cafe") == ([6, 7, 5], [(0, 5), (5, 6), (7, 11)])


def test_special_names_are_text_in_stores_and_tokens_to_models(bert):
    vocab = vocabulary(bert)
    assert [WORDS[i] for i in vocab.encode(b"[SEP]", "any")] == ["[", "sep", "]"]
    assert vocab.tokenizer.named.encode("[SEP]", add_special_tokens=False).ids == [3]


def test_t5_from_pieces_alone_with_its_sentinels(tmp_path, pieces):
    folder = tmp_path / "t5"
    write(folder, "config.json", {"model_type": "t5"})
    (folder / "spiece.model").write_bytes(pieces)
    vocab = vocabulary(folder)
    assert vocab.size == 115
    assert vocab.frame == ((), (1,))
    ids = vocab.encode(b"the whale", "any").tolist()
    assert vocab.decode(ids) == "the whale"
    assert vocab.tokenizer.spans("the whale")[0] == ids
    assert vocab.decode([*ids, 114, 15]) == "the whale<extra_id_0><extra_id_99>"
    write(folder, "tokenizer_config.json", {"extra_ids": 3})
    assert vocabulary(folder).size == 18
    assert vocabulary(folder).fingerprint != vocab.fingerprint


def test_pieces_are_found_in_their_text_by_characters(tmp_path, pieces):
    folder = tmp_path / "t5"
    write(folder, "config.json", {"model_type": "t5"})
    (folder / "spiece.model").write_bytes(pieces)
    tokenizer = vocabulary(folder).tokenizer
    text = "the \N{WHALE} saw  a caf\N{LATIN SMALL LETTER E WITH ACUTE}"
    ids, offsets = tokenizer.spans(text)
    assert ids == tokenizer.encode(text)
    # Side by side from the first character to the last.
    assert [first for first, _ in offsets] == [0, *(stop for _, stop in offsets[:-1])]
    assert offsets[-1][1] == len(text)
    for token, (first, stop) in zip(ids, offsets, strict=True):
        if token != tokenizer.unknown_id:
            assert tokenizer.decode([token]).strip() == text[first:stop].strip()


def test_a_unigram_model_does_not_spell_special_tokens(tmp_path, library):
    letters = [(letter, -2.0) for letter in "</s>▁ab"]
    model = library.models.Unigram([("<unk>", 0.0), ("</s>", 0.0), *letters], unk_id=0)
    tokenizer = library.Tokenizer(model)
    tokenizer.add_special_tokens(["<unk>", "</s>"])
    (tmp_path / "t5").mkdir()
    tokenizer.save(str(tmp_path / "t5" / "tokenizer.json"))
    vocab = vocabulary(tmp_path / "t5")
    assert vocab.encode("a</s>é".encode(), "any").tolist() == [7, 2, 3, 4, 5, 0]
    assert vocab.unknown_id == 0


PIECE_FOLDER_ERRORS = {
    "no JSON object": ("tokenizer_config.json", []),
    "code": ("tokenizer_config.json", {"auto_map": {}}),
    "another class": ("tokenizer_config.json", {"tokenizer_class": "XLNetTokenizer"}),
    "a flag": ("tokenizer_config.json", {"do_lower_case": "yes"}),
    "a token": ("tokenizer_config.json", {"eos_token": {"text": "a"}}),
    "an id": ("added_tokens.json", {"more": "four"}),
    "the id of a piece": ("added_tokens.json", {"more": 7}),
    "one id twice": ("added_tokens.json", {"a b": 20, "c d": 20}),
}


@pytest.mark.parametrize("name, content", PIECE_FOLDER_ERRORS.values(), ids=PIECE_FOLDER_ERRORS)
def test_bad_settings_of_a_sentencepiece_model_are_refused(tmp_path, pieces, name, content):
    write(tmp_path / "t5", name, content)
    (tmp_path / "t5" / "spiece.model").write_bytes(pieces)
    with pytest.raises(ValueError, match="t5") as raised:
        vocabulary(tmp_path / "t5").size  # noqa: B018
    assert name in str(raised.value) or "spiece.model" in str(raised.value)


def test_a_link_out_of_the_folder_is_not_followed(tmp_path, bert):
    (bert / "tokenizer.json").rename(tmp_path / "elsewhere.json")
    (bert / "tokenizer.json").symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(ValueError, match="is a link to a file outside"):
        vocabulary(bert).size  # noqa: B018


def test_folders_without_a_tokenizer_that_is_read_are_named(tmp_path, bert):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        vocabulary(tmp_path / "nowhere").size  # noqa: B018
    (bert / "tokenizer.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"tokenizer\.json"):
        vocabulary(bert).size  # noqa: B018
    (bert / "vocab.txt").write_text("[UNK]\n")
    with pytest.raises(ValueError, match="AutoTokenizer"):
        vocabulary(bert).size  # noqa: B018


@pytest.mark.parametrize("seed", range(20))
def test_mutated_files_are_read_or_refused_in_one_sentence(bert, seed, capfd):
    draw = random.Random(seed)
    path = bert / "tokenizer.json"
    content = json.loads(path.read_text())
    at = content
    while isinstance(at, dict) and at:
        key = draw.choice(list(at))
        if not isinstance(at[key], dict) or draw.random() < 0.4:
            at[key] = draw.choice([None, 1, -1, 1.5, "x", "", [], {}, True, [None], "\udcff"])
            if draw.random() < 0.3:
                del at[key]
            break
        at = at[key]
    path.write_text(json.dumps(content))
    try:
        vocab = vocabulary(bert)
        ids = vocab.encode(b"cafe whales", "any")
        assert ids.max(initial=0) < vocab.size
    except ValueError as error:
        assert re.fullmatch(r"[^\n]+\.", str(error)), str(error)
        assert bert.name in str(error)


@recorded
def test_recorded_encodings_are_met(check, capsys):
    assert check(RECORDED) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith("ok") and line.count("texts 0.0e+00") == 5


@recorded
def test_sentencepiece_gives_the_ids_of_saved_tokenizers(tmp_path):
    for name in ("deberta", "t5"):
        record = json.loads(RECORDED.read_text())[name]
        folder = tmp_path / name
        shutil.copytree(RECORDED.parent / record["folder"], folder)
        (folder / "tokenizer.json").unlink()
        vocab = vocabulary(folder)
        for text in record["texts"]:
            if not any(name in text["text"] for name in vocab.special_ids):
                ids = vocab.encode(text["text"].encode(), "a").tolist()
                assert ids == text["ids_without_special"]
                assert [*vocab.frame.before, *ids, *vocab.frame.after] == text["ids"]
                assert vocab.decode(ids) == text["decoded"]
