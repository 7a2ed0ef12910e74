"""A longer memory at evaluation, while it helps: on made-up losses, and on tiny models."""

import json
import math

import pytest
from fabricated_runs import filled_cells, tables_of
from tiny_run import LENGTHS, TXL, build, command, write_config, write_corpus

from brt import evaluate, train
from brt.reporting.papers.published_tables import read_paper
from brt.studies.attention_length import sweep


@pytest.mark.parametrize("last", [100, 300, 1600])
def test_the_sweep_ends_one_length_after_the_last_that_helped(last):
    asked = []

    def loss_of(length):
        asked.append(length)
        return 3.0 - 0.002 * min(length, last) / 100

    found = sweep(loss_of, range(100, 4000, 100))
    assert found.best == last and found.ended
    assert asked == found.lengths == list(range(100, last + 200, 100))
    assert found.losses == [3.0 - 0.002 * min(length, last) / 100 for length in asked]


def test_a_sweep_that_never_stops_helping_says_so():
    found = sweep(lambda length: 3.0 - length / 1000, [10, 20, 30])
    assert found == ([10, 20, 30], [2.99, 2.98, 2.97], 30, False)


def test_the_threshold_is_0_001_of_perplexity_and_losses_end_it():
    for drop, best in ((0.00099, 1), (0.00101, 3), (-0.5, 1)):
        assert sweep(lambda length, d=drop: 2.0 - d * length, [1, 2, 3]).best == best


def trained(folder, *lines):
    """A run of `brt.train` whose longest document to evaluate is longer than every length tried."""
    write_corpus(folder / "texts", LENGTHS | {"validation": (1, 16, 53, 520)})
    lines += ("TransformerXL.std = 0.5",)  # so that what it sees makes a difference
    path = write_config(folder, *lines)
    build(path)  # prepares the stores, for which the command would start a process
    with pytest.MonkeyPatch.context() as monkeypatch:
        flags = f"--gin_file={path}", f"--workdir={folder / 'run'}"
        assert not command(monkeypatch, train, *flags)
    return folder / "run"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("txl"), *TXL)


def study(monkeypatch, run, step, longest, *bindings):
    """The command's file, with every length tried."""
    monkeypatch.setattr("brt.studies.attention_length.THRESHOLD", -math.inf)
    bindings += f"AttentionLength.step={step}", f"AttentionLength.longest={longest}"
    flags = "--study=attention_length", *(f"--gin.{binding}" for binding in bindings)
    assert not command(monkeypatch, evaluate, f"--workdir={run}", *flags)
    return json.loads((run / "studies" / "attention_length.json").read_text())


def perplexity_of(monkeypatch, run, *bindings):
    flags = [f"--gin.{binding}" for binding in bindings]
    assert not command(monkeypatch, evaluate, f"--workdir={run}", *flags)
    return json.loads((run / "evaluation_validation.json").read_text())["perplexity"]


def test_the_sweep_of_a_run_is_one_command(monkeypatch, capsys, run):
    found = study(monkeypatch, run, 24, 60)
    (curve,) = found["series"]
    assert curve["x"] == [16, 24, 48] and found["numbers"]["best_length"] == 48
    assert found["numbers"]["initial_length"] == 16  # training's own
    assert found["summary"] in capsys.readouterr().out
    model = "Evaluation.model=@evaluation/TransformerXL"
    for length, perplexity in zip(curve["x"], curve["y"]):
        longer = f"evaluation/TransformerXL.memory_length={length}"
        assert perplexity == pytest.approx(perplexity_of(monkeypatch, run, model, longer), rel=1e-6)
    assert len(set(curve["y"])) == 3


def test_a_setting_under_another_name_is_lengthened(monkeypatch, tmp_path):
    lines = "Trainer.model = @RecurrentMemoryTransformer", "TransformerXL.memory_length = 8"
    rmt = trained(tmp_path, *TXL, *lines, "RecurrentMemoryTransformer.num_memory = 2")
    (curve,) = study(monkeypatch, rmt, 16, 32)["series"]
    assert curve["x"] == [8, 16, 32] and len(set(curve["y"])) == 3
    bindings = "Evaluation.model=@evaluation/RecurrentMemoryTransformer"
    bindings = bindings, "evaluation/TransformerXL.memory_length=32"
    assert perplexity_of(monkeypatch, rmt, *bindings) == pytest.approx(curve["y"][-1], rel=1e-6)


def test_what_evaluation_binds_besides_the_length_stays_in_force(monkeypatch, run):
    own = "Evaluation.model=@mine/TransformerXL", "mine/TransformerXL.same_length=True"
    (curve,) = study(monkeypatch, run, 40, 40, *own)["series"]
    assert curve["x"] == [16, 40]
    length = "mine/TransformerXL.memory_length=40"
    expected, plain = (perplexity_of(monkeypatch, run, *b, length) for b in (own, own[:1]))
    assert curve["y"][-1] == pytest.approx(expected, rel=1e-6)
    assert curve["y"][-1] != pytest.approx(plain, rel=1e-6)


SIZES = "num_layers", "width", "num_heads", "head_size", "feed_forward_size", "memory_length"
STANDARD = dict(zip(SIZES, (16, 410, 10, 41, 2100, 150)))
ABLATION = dict(zip(SIZES, (12, 384, 8, 48, 1744, 128)))


def filled(run, name, sizes, segment_length):
    """Returns the measured cells of a table if the tiny run represents a published model."""
    settings = {f"TransformerXL.{size}": value for size, value in sizes.items()}
    settings |= {"Trainer.segment_length": segment_length, "Trainer.steps": 200_000}
    (run / "stands_for.json").write_text(json.dumps({"settings": settings}))
    tables = tables_of(read_paper("transformer_xl"), [run])
    return {
        label: {head.removesuffix(", stores"): cell.values[0] for head, cell in cells.items()}
        for (label, *_), cells in filled_cells(tables[name]).items()
    }


def test_the_study_fills_the_columns_of_tables_5_and_8(monkeypatch, run):
    (curve,) = study(monkeypatch, run, 150, 450)["series"]
    assert curve["x"] == [16, 150, 300, 450]
    perplexity = dict(zip(curve["x"], curve["y"]))
    assert len(set(perplexity.values())) == 4
    initial = perplexity_of(monkeypatch, run)
    assert filled(run, "txl_table_5", STANDARD, 150) == {
        "Transformer-XL (151M)": {"initial": initial, "best": perplexity[450], "attention": 450},
        "Transformer-XL (151M), attention 450": {"best": perplexity[450]},
        "Transformer-XL (151M), attention 300": {"best": perplexity[300]},
    }
    whole = {"initial": initial, "best": perplexity[450], "attention": 450}
    assert filled(run, "txl_table_5", ABLATION, 128) == {"Transformer-XL (128M)": whole}
    assert filled(run, "txl_table_8", ABLATION, 128) == {"128": whole}


def test_a_study_of_another_split_than_the_evaluation_is_told(monkeypatch, run):
    study(monkeypatch, run, 150, 150)
    assert not command(monkeypatch, evaluate, f"--workdir={run}", "--gin.Evaluation.split='test'")
    tables = tables_of(read_paper("transformer_xl"), [run])
    expected = "run, seed 0: attention_length of validation, evaluated on test"
    assert any(note.startswith(expected) for note in tables["txl_table_5"].notes())


def test_a_model_without_that_setting_is_refused(monkeypatch, capsys, run):
    for name in ("BlockRecurrentTransformer.window", "TransformerXL.encoding", "Trainer.model"):
        flags = "--study=attention_length", f"--gin.AttentionLength.setting={name!r}"
        assert command(monkeypatch, evaluate, f"--workdir={run}", *flags) == 1
        shown = capsys.readouterr().err
        assert f"AttentionLength.setting = {name!r}" in shown and "Traceback" not in shown
        assert "whose model is TransformerXL" in shown
