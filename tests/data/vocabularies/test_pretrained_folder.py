"""Tokenizers of Hub folders: the ids of the files, whichever files there are, or one sentence."""

import json
import random
import re
import shutil
import sys

import numpy as np
import pytest
from paths import GOLDEN

from brt.data.extras import MissingExtra
from brt.data.vocabularies.named import named_vocabulary
from brt.data.vocabularies.pretrained_folder import PretrainedFolderVocabulary

RECORDED = GOLDEN / "pretrained" / "encodings.json"
recorded = pytest.mark.skipif(not RECORDED.exists(), reason="needs recorded encodings")

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cafe", "whale", "##s", "sep", "[", "]"]
MERGES = [("Ġ", "a"), ("a", "b"), ("c", "ab")]


@pytest.fixture(autouse=True)
def library():
    return pytest.importorskip("tokenizers", reason='needs pip install -e ".[text]"')


def write(folder, name, content):
    folder.mkdir(exist_ok=True)
    if not isinstance(content, str):
        content = json.dumps(content)
    (folder / name).write_text(content, encoding="utf-8")


@pytest.fixture
def bert(tmp_path):
    """A folder with BERT's older files."""
    folder = tmp_path / "bert"
    write(folder, "vocab.txt", "\n".join(WORDS) + "\n")
    write(folder, "tokenizer_config.json", {"tokenizer_class": "BertTokenizer"})
    return folder


def byte_level_files(folder, library, model_type, special):
    alphabet = sorted(library.pre_tokenizers.ByteLevel.alphabet())
    symbols = [*special, *alphabet, *("".join(pair) for pair in MERGES)]
    write(folder, "vocab.json", {symbol: number for number, symbol in enumerate(symbols)})
    lines = ["#version: 0.2", *(" ".join(pair) for pair in MERGES)]
    write(folder, "merges.txt", "\n".join(lines) + "\n")
    write(folder, "config.json", {"model_type": model_type})
    return symbols


@pytest.fixture
def gpt2(tmp_path, library):
    """A folder with GPT-2's older files, and no settings but the kind of model."""
    byte_level_files(tmp_path / "gpt2", library, "gpt2", ["<|endoftext|>"])
    return tmp_path / "gpt2"


@pytest.fixture
def roberta(tmp_path, library):
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    byte_level_files(tmp_path / "roberta", library, "roberta", special)
    return tmp_path / "roberta"


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


@pytest.mark.parametrize("name", ["tokenizer.json", "vocab.json", "vocab.txt", "bpe", "wordpiece"])
def test_a_missing_library_is_no_broken_file(name, gpt2, bert, monkeypatch):
    if name == "tokenizer.json":
        vocabulary(gpt2).tokenizer._named.save(str(gpt2 / name))
    text = {
        "vocab.txt": f"pretrained:{bert}",
        "bpe": f"bpe:{gpt2}",
        "wordpiece": f"wordpiece:{bert}/vocab.txt",
    }.get(name, f"pretrained:{gpt2}")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MissingExtra, match=r'pip install -e "\.\[text\]"'):
        named_vocabulary(text).encode(b"a whale", "title")


def vocabulary(folder):
    return named_vocabulary(f"pretrained:{folder}")


def test_the_kind_pretrained_names_a_folder_and_opens_nothing():
    named = named_vocabulary("pretrained:nowhere/bert")
    assert isinstance(named, PretrainedFolderVocabulary)
    assert (named.name, named.path) == ("pretrained:bert", "nowhere/bert")


def test_bert_from_its_list_of_words(bert):
    vocab = vocabulary(bert)
    ids = vocab.encode("Café  WHALES xyz".encode(), "any")
    assert [WORDS[i] for i in ids] == ["cafe", "whale", "##s", "[UNK]"]
    assert ids.dtype == np.int32
    assert (vocab.size, vocab.unknown_id) == (len(WORDS), 1)
    assert vocab.special_ids == {name: n for n, name in enumerate(WORDS[:5])}
    assert vocab.tokenizer.frame() == ([2], [3])
    pair = vocab.tokenizer.read("cafe", "whales")
    assert pair.ids == [2, 5, 3, 6, 7, 3]
    assert pair.types == [0, 0, 0, 1, 1, 1]
    assert pair.sequences == [None, 0, None, 1, 1, None]
    assert vocab.tokenizer.spans("whales cafe") == ([6, 7, 5], [(0, 5), (5, 6), (7, 11)])


def test_names_of_special_tokens_are_text_in_a_store_and_tokens_to_a_model(bert, gpt2):
    vocab = vocabulary(bert)
    assert [WORDS[i] for i in vocab.encode(b"[SEP]", "any")] == ["[", "sep", "]"]
    assert vocab.tokenizer.read("[SEP]", special=False).ids == [3]
    vocab = vocabulary(gpt2)
    assert vocab.tokenizer.read("a<|endoftext|>", special=False).ids[-1] == 0
    assert 0 not in vocab.encode(b"a<|endoftext|>", "any")


def test_gpt2_from_vocabulary_and_merges_without_any_settings(gpt2):
    vocab = vocabulary(gpt2)
    symbols = list(json.loads((gpt2 / "vocab.json").read_text()))
    ids = vocab.encode(b"cab a\n", "any")
    assert [symbols[i] for i in ids] == ["cab", "Ġa", "Ċ"]
    assert vocab.decode(ids) == "cab a\n"
    assert vocab.unknown_id is None
    assert vocab.tokenizer.special == dict.fromkeys(("bos", "eos", "unk"), ("<|endoftext|>", 0))
    assert vocab.tokenizer.frame() == ([], [])


def test_roberta_stands_between_its_own_tokens(roberta):
    tokenizer = vocabulary(roberta).tokenizer
    assert tokenizer.frame() == ([0], [2])
    assert tokenizer.read("a", "b").ids == [
        0,
        *tokenizer.encode("a"),
        2,
        2,
        *tokenizer.encode("b"),
        2,
    ]
    # Its mask takes the space before it.
    assert tokenizer.read("a <mask>", special=False).ids == [*tokenizer.encode("a"), 4]


def test_t5_from_pieces_alone_with_its_sentinels(tmp_path, pieces):
    folder = tmp_path / "t5"
    write(folder, "config.json", {"model_type": "t5"})
    (folder / "spiece.model").write_bytes(pieces)
    vocab = vocabulary(folder)
    assert vocab.size == 115
    assert vocab.tokenizer.frame() == ([], [1])
    ids = vocab.encode(b"the whale", "any").tolist()
    assert vocab.decode(ids) == "the whale"
    assert vocab.tokenizer.spans("the whale")[0] == ids
    assert vocab.tokenizer.read("the whale", "a").ids == [*ids, 1, *vocab.tokenizer.encode("a"), 1]
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


def test_a_saved_tokenizer_decides_whatever_else_is_there(bert, library):
    before = vocabulary(bert)
    whole = before.tokenizer._named
    whole.enable_truncation(2)
    whole.enable_padding(length=16)
    whole.normalizer = library.normalizers.BertNormalizer(lowercase=False)
    whole.save(str(bert / "tokenizer.json"))
    after = vocabulary(bert)
    ids = after.encode(b"cafe whales CAFE", "any")
    # Neither cut nor filled up, whatever was saved.
    assert [WORDS[i] for i in ids] == ["cafe", "whale", "##s", "[UNK]"]
    assert len(after.tokenizer.read("cafe whales").ids) == 5
    assert after.fingerprint != before.fingerprint


def test_a_unigram_model_does_not_spell_special_tokens_that_it_holds(tmp_path, library):
    letters = [(letter, -2.0) for letter in "</s>▁ab"]
    model = library.models.Unigram([("<unk>", 0.0), ("</s>", 0.0), *letters], unk_id=0)
    tokenizer = library.Tokenizer(model)
    tokenizer.add_special_tokens(["<unk>", "</s>"])
    (tmp_path / "t5").mkdir()
    tokenizer.save(str(tmp_path / "t5" / "tokenizer.json"))
    vocab = vocabulary(tmp_path / "t5")
    assert vocab.encode("a</s>é".encode(), "any").tolist() == [7, 2, 3, 4, 5, 0]
    assert vocab.tokenizer.read("a</s>", special=False).ids == [7, 1]
    assert vocab.unknown_id == 0


def test_without_the_library_the_sentence_says_what_to_install(monkeypatch, bert):
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    with pytest.raises(ImportError, match=r"PretrainedFolderVocabulary needs.*\.\[text\]"):
        vocabulary(bert).encode(b"a", "any")


REFUSED = {
    "not JSON": ("tokenizer_config.json", "{", r"tokenizer_config\.json is not JSON"),
    "a list": ("tokenizer_config.json", [], r"tokenizer_config\.json holds list"),
    "code": ("tokenizer_config.json", {"auto_map": {}}, "has auto_map"),
    "a class that is not built": (
        "tokenizer_config.json",
        {"tokenizer_class": "XLNetTokenizer"},
        r"vocab\.txt is of tokenizer_class XLNetTokenizer",
    ),
    "no text": ("tokenizer_config.json", {"tokenizer_class": 3}, "tokenizer_class = 3"),
    "a flag": (
        "tokenizer_config.json",
        {"tokenizer_class": "BertTokenizer", "do_lower_case": "yes"},
        "do_lower_case = 'yes'",
    ),
    "a token": (
        "tokenizer_config.json",
        {"tokenizer_class": "BertTokenizer", "cls_token": {"text": "a"}},
        "cls_token = ",
    ),
    "an id": ("added_tokens.json", {"[MASK]": "four"}, "'four' at"),
    "another id": ("added_tokens.json", {"[MASK]": 7}, r"'\[MASK\]' has id 7.*has 4"),
    "one id twice": ("added_tokens.json", {"[MASK]": 4, "a": 4}, "id 4 to two tokens"),
    "no list": (
        "special_tokens_map.json",
        {"additional_special_tokens": "a"},
        "additional_special_tokens = 'a'",
    ),
    "a broken tokenizer": ("tokenizer.json", {"model": {}}, r"tokenizer\.json holds no tokenizer"),
}


@pytest.mark.parametrize("name, content, sentence", REFUSED.values(), ids=REFUSED)
def test_a_bad_file_is_refused_by_its_name_and_key(bert, name, content, sentence):
    write(bert, name, content)
    with pytest.raises(ValueError, match=sentence) as raised:
        vocabulary(bert).size  # noqa: B018
    assert str(raised.value).endswith(".")


def test_a_link_out_of_the_folder_is_not_followed(tmp_path, bert):
    (bert / "vocab.txt").rename(tmp_path / "elsewhere.txt")
    (bert / "vocab.txt").symlink_to(tmp_path / "elsewhere.txt")
    with pytest.raises(ValueError, match=r"vocab\.txt is a link to a file outside"):
        vocabulary(bert).size  # noqa: B018


def test_missing_files_are_named(tmp_path, bert):
    with pytest.raises(FileNotFoundError, match="No folder of a pretrained model is at"):
        vocabulary(tmp_path / "nowhere").size  # noqa: B018
    (bert / "vocab.txt").unlink()
    with pytest.raises(
        FileNotFoundError, match=r"has no tokenizer: it should hold tokenizer\.json"
    ):
        vocabulary(bert).size  # noqa: B018


def test_a_special_token_that_the_saved_tokenizer_lacks_is_named(bert):
    vocabulary(bert).tokenizer._named.save(str(bert / "tokenizer.json"))
    write(bert, "special_tokens_map.json", {"pad_token": "<none>"})
    with pytest.raises(ValueError, match=r"special_tokens_map\.json has pad_token = '<none>'"):
        vocabulary(bert).size  # noqa: B018


@pytest.mark.parametrize("seed", range(100))
def test_mutated_files_are_read_or_refused_in_one_sentence(bert, seed, capfd):
    """Values of other types, missing keys, cut files; of a saved tokenizer or older files."""
    draw = random.Random(seed)
    if seed % 2:
        vocabulary(bert).tokenizer._named.save(str(bert / "tokenizer.json"))
    write(bert, "added_tokens.json", {"<more>": len(WORDS)})
    write(
        bert, "special_tokens_map.json", {"cls_token": "[CLS]", "sep_token": {"content": "[SEP]"}}
    )
    path = draw.choice(sorted(bert.iterdir()))
    if path.suffix != ".json" or draw.random() < 0.2:
        data = path.read_bytes()
        path.write_bytes(data[: draw.randrange(len(data))])
    else:
        content = json.loads(path.read_text())
        at = content
        while isinstance(at, dict) and at:
            key = draw.choice(list(at))
            if not isinstance(at[key], dict) or draw.random() < 0.4:
                value = draw.choice([None, 1, -1, 1.5, "x", "", [], {}, True, [None], "\udcff"])
                at[key] = value
                if draw.random() < 0.3:
                    del at[key]
                break
            at = at[key]
        path.write_text(json.dumps(content))
    try:
        vocab = vocabulary(bert)
        ids = vocab.encode(b"cafe whales", "any")
        assert ids.max(initial=0) < vocab.size
        vocab.tokenizer.read("cafe", "whales")
    except (ValueError, FileNotFoundError) as error:
        assert re.fullmatch(r"[^\n]+\.", str(error)), str(error)
        assert bert.name in str(error)


@recorded
def test_recorded_encodings_are_met(check, capsys):
    assert check(RECORDED) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith("ok") and line.count("texts 0.0e+00") == 5


@recorded
def test_the_script_tells_a_recorded_encoding_that_is_not_met(check, tmp_path, capsys):
    shutil.copytree(RECORDED.parent / "models" / "bert_classify", tmp_path / "bert")
    found = json.loads(RECORDED.read_text())["bert"] | {"folder": "bert"}
    found["texts"][0]["ids"][1] += 1
    found["pairs"][1]["token_type_ids"][0] = 1
    write(tmp_path, "encodings.json", {"bert": found})
    assert check(tmp_path / "encodings.json") == 1
    assert "bert texts 1.0e+00  bert pairs 1.0e+00" in capsys.readouterr().out


@recorded
def test_the_older_files_give_the_same_ids_as_the_saved_tokenizer(tmp_path):
    for name, record in json.loads(RECORDED.read_text()).items():
        folder = tmp_path / name
        shutil.copytree(RECORDED.parent / record["folder"], folder)
        (folder / "tokenizer.json").unlink()
        older = vocabulary(folder)
        assert older.tokenizer.count == record["size"]
        spelt = [name for name, _ in older.tokenizer.special.values()]
        for text in record["texts"]:
            if not any(name in text["text"] for name in spelt):
                assert older.tokenizer.read(text["text"]).ids == text["ids"]
                assert (
                    older.encode(text["text"].encode(), "a").tolist() == text["ids_without_special"]
                )
                assert older.decode(text["ids_without_special"]) == text["decoded"]
        for pair in record["pairs"]:
            found = older.tokenizer.read(pair["first"], pair["second"])
            assert (found.ids, found.sequences) == (pair["ids"], pair["sequence_ids"])
