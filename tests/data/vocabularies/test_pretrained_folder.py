"""Tokenizers of Hub folders: the ids of tokenizer.json."""

import json
import random
import re

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


def test_a_saved_tokenizer_is_read_without_truncation(bert):
    vocab = vocabulary(bert)
    ids = vocab.encode("Café  WHALES xyz".encode(), "any")
    assert [WORDS[i] for i in ids] == ["cafe", "whale", "##s", "[UNK]"]
    assert (vocab.size, vocab.unknown_id) == (len(WORDS), 1)
    assert vocab.special_ids == {name: n for n, name in enumerate(WORDS[:5])}
    assert vocab.frame == ((2,), (3,))
    ids, characters = vocab.spans("whales cafe")
    assert (ids.tolist(), characters.tolist()) == ([6, 7, 5], [[0, 5], [5, 6], [7, 11]])


def test_special_names_are_text_in_stores_and_tokens_to_models(bert):
    vocab = vocabulary(bert)
    assert [WORDS[i] for i in vocab.encode(b"[SEP]", "any")] == ["[", "sep", "]"]
    assert vocab.tokenizer.named.encode("[SEP]", add_special_tokens=False).ids == [3]


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


@pytest.mark.parametrize("content", [[], {"auto_map": {}}])
def test_settings_that_name_a_program_are_refused(bert, content):
    write(bert, "tokenizer_config.json", {"tokenizer_class": "BertTokenizer"})
    assert vocabulary(bert).size == len(WORDS)
    write(bert, "tokenizer_config.json", content)
    with pytest.raises(ValueError, match=r"bert/tokenizer_config\.json"):
        vocabulary(bert).size  # noqa: B018


def test_a_link_out_of_the_folder_is_not_followed(tmp_path, bert):
    (bert / "tokenizer.json").rename(tmp_path / "elsewhere.json")
    (bert / "tokenizer.json").symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(ValueError, match="is a link to a file outside"):
        vocabulary(bert).size  # noqa: B018


def test_folders_without_a_tokenizer_that_is_read_are_named(tmp_path, bert):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        vocabulary(tmp_path / "nowhere").size  # noqa: B018
    (bert / "tokenizer.json").unlink()
    (bert / "spiece.model").write_bytes(b"")
    with pytest.raises(FileNotFoundError, match=r"no tokenizer\.json.*AutoTokenizer.*bert.*save"):
        vocabulary(bert).size  # noqa: B018


@pytest.mark.parametrize("seed", range(20))
def test_mutated_files_are_read_or_refused_in_one_sentence(bert, seed):
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
