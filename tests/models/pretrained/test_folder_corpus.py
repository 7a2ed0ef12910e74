"""A pretrained folder and the corpus that it is trained on: whose ids they are."""

import json
import shutil
from pathlib import Path

import pytest
from tiny_folders import make_folder

from brt import config
from brt.experiment import Experiment
from brt.run.checks import check_vocabulary

pytest.importorskip("tokenizers", reason='needs pip install -e ".[text]"')

LINES = """
include "configs/small/gpt2.gin"
include "configs/corpora/text.gin"
include "configs/bodies/gpt2_of_folder.gin"
Trainer.segment_length = 12
Trainer.tokens_per_step = 96
Trainer.steps = 1000
"""


@pytest.fixture
def folder(tmp_path):
    """A GPT-2 with a byte-level tokenizer, as it is published: 261 ids."""
    import tokenizers

    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e"), ("a", "n"), ("Ġ", "the")]
    symbols = ["<|endoftext|>", *alphabet, *("".join(pair) for pair in merges)]
    path = tmp_path / "gpt2"
    make_folder(path, vocab_size=len(symbols), bos_token_id=0, eos_token_id=0)
    (path / "vocab.json").write_text(json.dumps({s: n for n, s in enumerate(symbols)}))
    (path / "merges.txt").write_text("\n".join(["#version: 0.2", *map(" ".join, merges)]) + "\n")
    model = tokenizers.models.BPE.from_file(str(path / "vocab.json"), str(path / "merges.txt"))
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.save(str(path / "tokenizer.json"))
    return path


def build(folder, *bindings, lines=LINES):
    gin_file = Path(folder).parent / "run.gin"
    gin_file.write_text(lines + f'Pretrained.folder = "{folder}"\n')
    config.parse([str(gin_file)], bindings)
    return Experiment.from_gin()


def message_of(call):
    with pytest.raises(ValueError) as caught:
        call()
    return str(caught.value)


def test_following_the_advice_leads_from_a_folder_to_a_run(folder):
    first = message_of(lambda: build(folder))
    assert "GPT2.vocabulary_size = 256" in first and "vocabulary_size = None" in first
    experiment = build(folder, "vocabulary_size = None")
    second = message_of(lambda: check_vocabulary(experiment))
    advice = f'Corpus.vocabulary = "pretrained:{folder}"'
    assert advice in second and "'bytes'" in second and "Pretrained.folder" in second
    check_vocabulary(build(folder, "vocabulary_size = None", advice))


def test_a_size_that_is_bound_without_a_macro_is_named_itself(folder):
    lines = LINES + "GPT2.width = 16\n"
    message = message_of(lambda: build(folder, "vocabulary_size = None", lines=lines))
    assert "bind GPT2.width = None" in message


@pytest.mark.parametrize(
    "vocabulary", ["pretrained:{folder}", "bpe:{folder}", "pretrained:{folder}_copy"]
)
def test_the_ids_count_and_not_the_name(folder, vocabulary):
    shutil.copytree(folder, f"{folder}_copy")
    bound = f'Corpus.vocabulary = "{vocabulary.format(folder=folder)}"'
    check_vocabulary(build(folder, "vocabulary_size = None", bound))


def test_other_ids_can_be_meant(folder):
    bindings = "vocabulary_size = None", "Pretrained.other_vocabulary = True"
    check_vocabulary(build(folder, *bindings))


def test_a_folder_without_a_tokenizer_accepts_every_vocabulary(folder):
    for name in ("tokenizer.json", "vocab.json", "merges.txt"):
        (folder / name).unlink()
    check_vocabulary(build(folder, "vocabulary_size = None"))


def test_symbols_of_a_task_are_accepted(folder):
    lines = LINES.replace("corpora/text", "tasks/recall_window").replace("segment_length", "seed")
    check_vocabulary(build(folder, "vocabulary_size = None", lines=lines))


def test_random_parameters_accept_every_vocabulary(folder):
    lines = LINES.replace('include "configs/bodies/gpt2_of_folder.gin"', "")
    (folder.parent / "run.gin").write_text(lines)
    config.parse([str(folder.parent / "run.gin")])
    check_vocabulary(Experiment.from_gin())


def test_labelled_texts_name_the_source_of_their_ids(folder):
    lines = LINES.replace(
        'include "configs/corpora/text.gin"',
        """
        Trainer.corpus = @Corpus()
        Corpus.store = "store"
        Corpus.source = @LabelledTexts()
        LabelledTexts.path = "texts"
        LabelledTexts.classes = ("0", "1")
        LabelledTexts.vocabulary = %tokenizer
        tokenizer = "bytes"
        vocabulary_size = None
        """.replace("    ", ""),
    )
    experiment = build(folder, lines=lines)
    message = message_of(lambda: check_vocabulary(experiment))
    assert f'bind tokenizer = "pretrained:{folder}"' in message
