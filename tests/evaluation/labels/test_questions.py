"""Questions by the published config at small size: spans are learned, and the table is filled."""

import json

import numpy as np
import pytest
from fabricated_runs import filled_cells, tables_of
from gin_settings import bound
from paths import CONFIGS
from tiny_run import command

from brt import evaluate, train
from brt.reporting.papers.published_tables import read_paper
from brt.training.records.run_folder import read_metrics

pytest.importorskip("tokenizers", reason='needs pip install -e ".[text]"')

FILES = "readers/roberta_spans_pooled.gin", "labelled/hotpotqa.gin"
SMALL = (
    *bound("RoBERTa", vocabulary_size=261, num_layers=2, width=16, num_heads=2),
    *bound("RoBERTa", feed_forward_size=24, num_positions=34, dropout=0.0),
    *bound("FinalLayerMemory", hidden=(8,)),
    *bound("Trainer", segment_length=32, segments_per_step=3, tokens_per_step=768),
    *bound("Trainer", steps=60, log_every=10, eval_every=30),
    *bound("CheckpointPolicy", every=60),
    *bound("HotpotQA", questions=100),
    *bound("linear", maximum=1e-2, warmup_steps=5),
)


def tokenizer(folder):
    """A tokenizer with a token for each byte, framed as RoBERTa's."""
    import tokenizers

    folder.mkdir()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    symbols = [*special, *sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())]
    model = tokenizers.models.BPE({symbol: n for n, symbol in enumerate(symbols)}, [])
    built = tokenizers.Tokenizer(model)
    built.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.decoder = tokenizers.decoders.ByteLevel()
    built.add_special_tokens(special)
    built.post_processor = tokenizers.processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=False
    )
    built.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"model_type": "roberta"}))


def records(count, seed):
    """Questions whose answer is the only word with capitals; every fourth is answered by yes."""
    draw = np.random.default_rng(seed)
    for number in range(count):
        words = draw.choice(["ink", "tea", "oak"], 9).tolist()
        words[int(draw.integers(9))] = "QX"
        yield {
            "_id": f"{number}",
            "question": "is?" if number % 4 == 0 else "who",
            "answer": "yes" if number % 4 == 0 else "QX",
            "supporting_facts": [["a", 0]],
            "context": [["a", [" ".join(words)]], ["b", ["oak tea ink"]]],
        }


@pytest.fixture(scope="module")
def run(folder):
    """A run folder of the published config at small size, evaluated on the development set."""
    tokenizer(folder / "roberta")
    for name, count, seed in (("train_v1.1", 120, 0), ("dev_distractor_v1", 30, 1)):
        (folder / f"hotpot_{name}.json").write_text(json.dumps([*records(count, seed)]))
    paths = (
        f'HotpotQA.path = "{folder}/hotpot_{{split}}.json"',
        f'Corpus.store = "{folder}/store"',
        f'tokenizer = "pretrained:{folder}/roberta"',
    )
    (folder / "small.gin").write_text("\n".join([*SMALL, *paths]))
    files = [*(str(CONFIGS / name) for name in FILES), str(folder / "small.gin")]
    flags = [f"--gin_file={file}" for file in files]
    with pytest.MonkeyPatch.context() as patch:
        assert command(patch, train, *flags, f"--workdir={folder / 'run'}") == 0
        assert command(patch, evaluate, f"--workdir={folder / 'run'}") == 0
    return folder / "run"


def test_spans_are_learned_from_the_questions_that_were_drawn(run):
    losses = [record["train/loss"] for record in read_metrics(str(run)) if "train/loss" in record]
    assert losses[-1] < 0.5 * losses[0]
    found = json.loads((run / "evaluation_validation.json").read_text())
    assert found["exact_match"] > 0.5 and found["answer_f1"] >= found["exact_match"]
    manifest = json.loads((run.parent / "store" / "train" / "manifest.json").read_text())
    assert manifest["documents"] == 100


def test_such_a_run_fills_the_row_of_its_table(run):
    tables = tables_of(read_paper("adding_recurrence"), [run])
    ((row, cells),) = filled_cells(tables["arpt_table_3"]).items()
    found = json.loads((run / "evaluation_validation.json").read_text())
    assert row[0] == "RoBERTa, recurrent"
    assert [cell.text for cell in cells.values()] == [
        f"{100 * found[name]:.2f}" for name in ("answer_f1", "exact_match")
    ]
