"""Losses with exactly c tokens of context, against the definition; RECL as a command."""

import json
import math
import shutil
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from random_runs import random_run
from tiny_run import PLAIN, TXL, build, command, contents, train_here, write_config

from brt import evaluate
from brt.reporting.drawing.heat_map import study_maps
from brt.studies import context_losses as module
from brt.studies import recl as study
from brt.studies.context_losses import context_losses, contexts, draw_positions
from brt.studies.recl import effective_context, gains, perplexities

T = 16
CONTEXTS = contexts(7, 45)  # 7 ... 42: no multiples of the block of 8 or the segment of 16


@pytest.fixture(scope="module")
def recurrent(tmp_path_factory):
    with random_run(tmp_path_factory.mktemp("recurrent")) as run:
        yield run


def loss_of(run, read, document, position, context):
    """-log p of a token, from a forward pass over the tokens right before it and nothing else."""
    tokens = run.store.tokens(document).astype(int)
    window = tokens[position - context : position]
    padded = np.zeros(-(-len(window) // T) * T, np.int32)
    padded[: len(window)] = window
    logits_V = np.float64(read(padded[None])[0, len(window) - 1])
    return math.log(np.exp(logits_V).sum()) - logits_V[tokens[position]]


def test_a_loss_is_that_of_a_model_that_reads_exactly_c_tokens(recurrent):
    owners_P, positions_P = draw_positions(recurrent.store, np.arange(7), CONTEXTS, 11, seed=0)
    assert len(positions_P) == 11 and set(owners_P) == {5, 6}  # the documents longer than 42
    found_CP = context_losses(recurrent, owners_P, positions_P, CONTEXTS)

    @jax.jit
    def read(tokens_BT):
        model = recurrent.experiment.bind(recurrent.params)
        return model(tokens_BT, model.init_caches(1))[0]

    for p, (document, position) in enumerate(zip(owners_P, positions_P)):
        for c, context in enumerate(CONTEXTS):
            expected = loss_of(recurrent, read, document, position, context)
            assert found_CP[c, p] == pytest.approx(expected, abs=2e-5)


def test_positions_have_the_longest_context_in_stretches(recurrent):
    store, documents = recurrent.store, np.arange(7)
    owners_P, positions_P = draw_positions(store, documents, CONTEXTS, 1000, seed=0)
    assert len(set(zip(owners_P, positions_P))) == len(positions_P)
    assert (positions_P >= 42).all() and (positions_P < store.lengths_D[owners_P]).all()
    again = draw_positions(store, documents, CONTEXTS, 1000, seed=0)
    np.testing.assert_array_equal((owners_P, positions_P), again)
    few = draw_positions(store, documents, CONTEXTS, 5, seed=0)
    np.testing.assert_array_equal(few, (owners_P[:5], positions_P[:5]))
    with pytest.raises(ValueError, match=r"Recl\.longest"):
        draw_positions(store, documents, contexts(100, 600), 5, seed=0)
    with pytest.raises(ValueError, match=r"Recl\.step"):
        contexts(100, 150)


def test_without_memory_the_whole_segment_is_read(recurrent, monkeypatch):
    monkeypatch.setattr(module, "own_reach", lambda experiment, length: length)
    owners_P, positions_P = draw_positions(recurrent.store, np.arange(7), CONTEXTS, 4, seed=1)
    found_CP = context_losses(recurrent, owners_P, positions_P, CONTEXTS)
    short, exact = context_losses(recurrent, owners_P, positions_P, np.array([14, 16]))
    np.testing.assert_array_equal(found_CP[1], short)  # 14 tokens
    for later in found_CP[2:]:  # 21 and more
        np.testing.assert_array_equal(later, exact)
    assert (short != exact).all()


@pytest.mark.parametrize(("memory", "reach"), [(0, T), (1, np.iinfo(np.int64).max)])
def test_a_model_that_carries_nothing_reaches_its_segment(tmp_path, memory, reach):
    lines = *TXL, f"TransformerXL.memory_length = {memory}"
    path = write_config(tmp_path, *lines)
    assert module.own_reach(build(path).experiment, T) == reach


@pytest.fixture(scope="module")
def runs(folder):
    """Folders of three trained runs on the same texts, two of them the same."""
    train_here(build(write_config(folder)), folder / "rec")
    train_here(build(write_config(folder, *PLAIN)), folder / "one")
    shutil.copytree(folder / "one", folder / "two")
    return folder


def test_recl_of_a_group_is_one_command(monkeypatch, capsys, runs):
    flags = f"--other={runs}/one,{runs}/two", "--gin.Recl.step=8", "--gin.Recl.longest=32"
    flags += ("--gin.Recl.positions=10",)
    assert not command(monkeypatch, evaluate, f"--workdir={runs}/rec", "--study=recl", *flags)
    shown = capsys.readouterr().out
    found = json.loads((runs / "rec" / "studies" / "recl.json").read_text())
    assert found["series"][0]["x"] == [8, 16, 24, 32] and found["numbers"]["models"] == 3
    assert [row["run"] for row in found["table"]] == [f"{runs}/{n}" for n in ("rec", "one", "two")]
    assert found["summary"] in shown and found["numbers"]["positions"] == 10
    columns = {f"r{r}{end}" for r in (0.1, 0.5, 1.0) for end in ("", "_ended")}
    for row in found["table"]:
        assert set(row) == {"run", "step"} | columns
    run = SimpleNamespace(name="rec", folder=runs / "rec", studies={"recl": found}, problems=[])
    maps = study_maps(run, "recl")
    assert [drawn.title.rpartition(" ")[2] for drawn in maps] == ["rec", "one", "two"]
    for drawn in maps:
        assert drawn.x_values == drawn.y_values == [8, 16, 24, 32]
        np.testing.assert_array_equal(drawn.values_RC < 0, np.tri(4, k=-1, dtype=bool))


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--other={}/letters"], "have different tokenizers, bytes of size 256 ("),
        (["--other={}/one", "--gin.Recl.step=20", "--gin.Recl.longest=30"], "give no two contexts"),
        (["--other={}/one"], "is longer than Recl.longest"),
        (["--other={}/one,{}/rec"], "is the run itself"),
    ],
)
def test_a_group_that_cannot_be_compared_is_refused(monkeypatch, capsys, runs, flags, sentence):
    if "letters" in flags[0] and not (runs / "letters").exists():
        (runs / "words.txt").write_text("<eos>\n<unk>\naaa\n")
        other = f'Corpus.vocabulary = "words:{runs}/words.txt"', f'Corpus.store = "{runs}/words"'
        train_here(build(write_config(runs, *PLAIN, *other)), runs / "letters")
    before = contents(runs / "rec")
    flags = [flag.format(runs, runs) for flag in flags]
    assert command(monkeypatch, evaluate, f"--workdir={runs}/rec", "--study=recl", *flags) == 1
    shown = capsys.readouterr().err
    assert sentence in shown and "Traceback" not in shown
    assert contents(runs / "rec") == before


def test_what_is_reported_is_made_of_the_losses_of_each_model(recurrent, monkeypatch):
    rng = np.random.default_rng(0)
    losses = iter(rng.gamma(2.0, size=(2, 6, 9)) - 0.4 * np.arange(6)[:, None])
    kept = []
    monkeypatch.setattr(study, "context_losses", lambda *_: kept.append(next(losses)) or kept[-1])
    found = study.Recl(7, 45, 9).measure(recurrent, {"other": recurrent}, np.arange(7), 0)
    assert found["numbers"]["positions"] == 9
    for i, (row, curve) in enumerate(zip(found["table"], found["series"], strict=True)):
        for share in (0.1, 0.5, 1.0):
            expected = effective_context(np.stack(kept), i, CONTEXTS, share)
            assert (row[f"r{share}"], row[f"r{share}_ended"]) == expected
        assert curve["x"] == CONTEXTS.tolist()
        assert curve["y"] == pytest.approx(perplexities(np.stack(kept))[i])
        upper = np.triu_indices(len(CONTEXTS))
        expected_CC = gains(np.stack(kept), i, 0.1).clip(0)
        np.testing.assert_allclose(found["arrays"][f"gains_{i}"][upper], expected_CC[upper])
