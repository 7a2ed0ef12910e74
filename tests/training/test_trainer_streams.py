"""What training does on other streams and meshes: one program, and the same run."""

import logging

import jax
import pytest
from gin_settings import bound
from tiny_run import PLAIN, assert_same_run, build, mesh_of, records, train_here, write_config

from brt.data.stores.token_store import TokenStore

STEPS = 12
BINDINGS = (
    *bound("Trainer", steps=STEPS, log_every=5),
    "CheckpointPolicy.every = 3",
    "Trainer.eval_every = 4",
    *bound("Evaluation", cleared=False, max_steps=None),
)


@pytest.mark.skipif(jax.device_count() < 2, reason="needs two devices")
def test_nothing_is_compiled_after_the_first_step(tmp_path, caplog):
    # Two model-parallel devices, where the compiler may prefer layouts other than ours.
    tiny = build(write_config(tmp_path, *PLAIN))
    with caplog.at_level(logging.WARNING), jax.log_compiles():
        train_here(tiny, tmp_path / "run", mesh=mesh_of(1, 2))
    assert caplog.text.count("Finished XLA compilation of jit(train_step)") == 1


AVERAGE = "Trainer.average = @WeightAverage()", "WeightAverage.decay = 0.5"
KINDS = {
    "shuffled": (('Trainer.stream = "shuffled"',), 1),
    "contiguous": (('Trainer.stream = "contiguous"', "Trainer.reread_segments = 2"), 1),
    "microbatches": (("Trainer.accumulation = 2",), 0),
    "an average": (AVERAGE, 0),
}
"""Bindings, and tokens that an evaluation does not score."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_is_the_one_that_was_not_stopped(tmp_path, kind):
    bindings, unscored = KINDS[kind]
    tiny = build(write_config(tmp_path, *PLAIN), *BINDINGS, *bindings)
    whole = train_here(tiny, tmp_path / "whole")
    train_here(tiny, tmp_path / "parts", stop_after=7)
    assert_same_run(train_here(tiny, tmp_path / "parts"), whole)
    (last,) = [r for r in records(tmp_path / "whole", "eval/") if r["step"] == STEPS]
    held_out = tiny.experiment.open_store("validation")
    assert last["eval/scored_tokens"] == held_out.num_tokens - unscored


@pytest.mark.skipif(jax.device_count() < 2, reason="needs two devices")
def test_a_run_resumed_on_another_mesh_has_the_same_checksum(tmp_path):
    tiny = build(write_config(tmp_path, *PLAIN, "Trainer.steps = 4"))
    train_here(tiny, tmp_path / "parts", stop_after=1, mesh=mesh_of(2, 1))
    run = train_here(tiny, tmp_path / "parts")
    whole = train_here(tiny, tmp_path / "whole")
    assert records(run.folder.path, "data/") == records(whole.folder.path, "data/") != []


def test_a_mixture_resumes_where_its_stores_have_moved(tmp_path):
    texts = f'TextFiles.path = "{tmp_path}/texts/{{split}}"'
    mixture = [
        "Trainer.corpus = @Mixture()",
        "Mixture.corpora = [@first/Corpus(), @second/Corpus()]",
        "Mixture.weights = [3, 1]",
        f'first/Corpus.store = "{tmp_path}/one"',
        f'second/Corpus.store = "{tmp_path}/two"',
        *(texts, "Trainer.eval_every = 4", "Trainer.steps = 4"),
    ]
    path = write_config(tmp_path, *PLAIN, *mixture, without=("Corpus.store",))
    tiny = build(path)
    whole = train_here(tiny, tmp_path / "whole")
    train_here(tiny, tmp_path / "parts", stop_after=3)
    (tmp_path / "two").rename(tmp_path / "moved")
    moved = build(path, f'second/Corpus.store = "{tmp_path}/moved"')
    assert_same_run(train_here(moved, tmp_path / "parts"), whole)
    (record,) = records(tmp_path / "parts", "eval/")
    stores = [TokenStore(tmp_path / name / "validation") for name in ("one", "moved")]
    assert record["eval/scored_tokens"] == sum(store.num_tokens for store in stores)
    assert [record[f"eval/scored_tokens/{n}"] for n in "01"] == [s.num_tokens for s in stores]
