"""Checkpoints: what comes back is what was saved, bit for bit, or an older one, or an error."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorstore
from checkpoints import abstract, array_file, flip, make_state, opened, placed, restored, saved
from paths import TESTS
from tiny_run import differing, ended, files_of_at_most, free_port, mesh_of, start

from brt.training.checkpoints.checkpoint import CheckpointError, Checkpoints, OtherModel
from brt.training.checkpoints.fingerprints import fingerprints

pytestmark = pytest.mark.usefixtures("collect_garbage")


# Saving and restoring.


def test_every_array_comes_back_bit_for_bit_with_its_record(tmp_path):
    state, record = make_state(7), {"interval": {"nats": 0.1 + 0.2, "weight": 1e-17}, "list": [1]}
    with opened(tmp_path) as checkpoints:
        checkpoints.save(state, record)
    found, found_record = restored(tmp_path, state)
    assert not differing(found, state)
    assert jax.tree.structure(found) == jax.tree.structure(state)
    assert {name: found_record[name] for name in record} == record
    with opened(tmp_path) as checkpoints:
        assert checkpoints.record(7)["interval"] == record["interval"]


def test_no_counters_are_read_which_would_never_be_freed(tmp_path):
    with opened(tmp_path):
        assert tensorstore.experimental_collect_matching_metrics("/tensorstore") == []


def test_an_array_without_elements_comes_back_as_one(tmp_path):
    """The cache of a Transformer-XL with memory_length 0."""
    whole = make_state()
    state = whole._replace(caches=(*whole.caches, jnp.zeros((8, 0, 16), jnp.bfloat16)))
    mesh = mesh_of(8, 1) if len(jax.devices()) >= 8 else mesh_of(1, 1)
    with opened(tmp_path) as checkpoints:
        checkpoints.save(state, {})
        checkpoints.wait()
        for where in (mesh_of(1, 1), mesh):
            shapes = abstract(whole, where)
            empty = jax.ShapeDtypeStruct((8, 0, 16), jnp.bfloat16, sharding=shapes.step.sharding)
            found, _ = checkpoints.restore_latest(shapes._replace(caches=(*shapes.caches, empty)))
            assert not differing(state, found)


def test_an_empty_folder_has_nothing_to_restore(tmp_path):
    assert restored(tmp_path / "new") is None


def test_steps_that_overwrite_the_state_do_not_change_the_save(tmp_path):
    step = jax.jit(
        lambda state: jax.tree.map(lambda x: x + jnp.ones_like(x), state), donate_argnums=0
    )
    state = make_state(0)
    state.params["large_VD"] = jnp.ones((512, 1024))
    kept = {}
    with opened(tmp_path, keep_last=3) as checkpoints:
        for number in range(3):
            kept[number] = jax.tree.map(np.array, state)
            checkpoints.save(state, {})
            for _ in range(3):
                state = step(state)
            state = state._replace(step=jnp.int32(number + 1))
        checkpoints.wait()
        for number, expected in reversed(kept.items()):
            checkpoints.quarantine(number)
            found, _ = checkpoints.restore_latest(abstract(expected))
            assert not differing(found, expected)


def test_the_newest_and_every_so_manyth_are_kept(tmp_path):
    assert saved(tmp_path, *range(1, 7), keep_last=2, keep_every=2) == [2, 4, 5, 6]
    found, record = restored(tmp_path)
    assert (int(found.step), record["step"]) == (6, 6)


def test_saving_a_step_again_keeps_the_first(tmp_path):
    with opened(tmp_path) as checkpoints:
        checkpoints.save(make_state(4), {"number": 1})
        checkpoints.wait()
        checkpoints.save(make_state(4, seed=1), {"number": 2})
    found, record = restored(tmp_path)
    assert not differing(found, make_state(4)) and record["number"] == 1


# Only a part, or on other devices.


def test_parameters_come_back_alone(tmp_path):
    saved(tmp_path, 5)
    shutil.rmtree(tmp_path / "5" / "optimizer")
    found, _ = restored(tmp_path, parts=("step", "params"))
    state = make_state(5)
    assert not differing(found.params, state.params) and int(found.step) == 5
    assert found.optimizer is None and found.caches is None


@pytest.mark.skipif(jax.device_count() < 8, reason="needs eight devices")
@pytest.mark.parametrize(
    ("first", "second"),
    [((1, 1), (8, 1)), ((1, 1), (2, 4)), ((4, 2), (1, 1)), ((4, 2), (1, 4)), ((2, 1), (2, 1))],
)
def test_a_state_moves_to_another_mesh_unchanged(tmp_path, first, second):
    state = placed(make_state(2), mesh_of(*first))
    with opened(tmp_path) as checkpoints:
        checkpoints.save(state, {})
        checkpoints.wait()
        wanted = abstract(state, mesh_of(*second))
        found, record = checkpoints.restore_latest(wanted)
    assert not differing(found, state)
    assert fingerprints(found) == record["fingerprints"]
    for x, expected in zip(jax.tree.leaves(found), jax.tree.leaves(wanted)):
        assert x.sharding == expected.sharding
    split = found.params["embedding_VD"].addressable_shards[0].data.shape
    assert split == (64 // second[1], 16 // second[0])


DIVIDED = 2 * 4 * 64 * 4096
"""Bytes of the largest arrays, parameters and momentum, before compression."""


@pytest.mark.slow
def test_two_processes_restore_bit_for_bit_what_one_reads(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(TESTS / "support"))
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "2")
    program, port = "tests.support.several_restores", free_port()
    started = [start(program, number, port, tmp_path) for number in range(2)]
    statuses, outputs = ended(started)
    assert statuses == [0, 0], outputs
    lines = [
        [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        for output in outputs
    ]
    for first, second in zip(*lines, strict=True):
        assert first["differing"] == second["differing"] == []
        assert first["mesh"] == second["mesh"] and first["step"] == second["step"]
    assert [line["step"] for line in lines[0]] == [5, 3] * 3
    for first, second in zip(*(found[::2] for found in lines), strict=True):
        data = first["mesh"][0]
        assert first["read"] > DIVIDED / (2 if data == 1 else 1) * 0.8
        # Without replicas in other processes, each reads its part.
        assert second["read"] < 100_000 if data > 1 else second["read"] > DIVIDED / 2 * 0.8


# Damage.


def test_when_all_are_damaged_the_error_lists_them(tmp_path):
    saved(tmp_path, 2, 4)
    for step in ("2", "4"):
        flip(array_file(tmp_path / step, "params"))
    with pytest.raises(CheckpointError, match=r"\[2, 4\]") as caught:
        restored(tmp_path)
    assert str(tmp_path) in str(caught.value) and "--workdir" in str(caught.value)
    assert (tmp_path / "2" / "params").exists() and (tmp_path / "4" / "params").exists()


def test_a_checkpoint_that_goes_before_it_is_read_is_skipped(tmp_path, monkeypatch):
    saved(tmp_path, 2, 4)
    with opened(tmp_path) as checkpoints:
        found = iter([[2, 4, 6]])  # the first list has a step that is deleted meanwhile
        listed = checkpoints.steps
        monkeypatch.setattr(checkpoints, "steps", lambda: next(found, None) or listed())
        state, _ = checkpoints.restore_latest(abstract(make_state()))
        assert int(state.step) == 4


@pytest.mark.parametrize("content", ["3", '{"commit_timestamp_nsecs": 1e300}', '{"a": 1}', "x"])
def test_a_damaged_time_of_a_checkpoint_does_not_matter(tmp_path, content):
    saved(tmp_path, 2, 4)
    (tmp_path / "4" / "_CHECKPOINT_METADATA").write_text(content)
    assert not differing(restored(tmp_path)[0], make_state(4))


def test_an_unfinished_checkpoint_is_ignored(tmp_path):
    saved(tmp_path, 2, 4)
    (tmp_path / "4").rename(tmp_path / "4.orbax-checkpoint-tmp-1700000000000000")
    with opened(tmp_path) as checkpoints:
        assert checkpoints.steps() == [2]
        found, _ = checkpoints.restore_latest(abstract(make_state()))
        assert int(found.step) == 2
        checkpoints.save(make_state(4), {})  # the name is free again
        checkpoints.wait()
        assert checkpoints.steps() == [2, 4]


def test_another_models_checkpoint_is_not_called_damaged(tmp_path, caplog):
    saved(tmp_path, 2)
    less = make_state()._replace(params={})
    for state, part in ((make_state(width=24), r"\(8, 5, 24\)"), (less, r"\.params.* alone")):
        with pytest.raises(OtherModel, match=part) as caught:
            restored(tmp_path, state)
        assert str(tmp_path) in str(caught.value) and "damaged" not in str(caught.value)
        with opened(tmp_path) as checkpoints, pytest.raises(OtherModel, match=part):
            checkpoints.restore(2, abstract(state))
    assert not caplog.text
    assert not differing(restored(tmp_path)[0], make_state(2))


# Fingerprints.


@pytest.mark.parametrize("shape", [(42,), (6, 7), (2, 3, 7)])
def test_a_fingerprint_sees_every_bit_and_every_place(shape):
    rng = np.random.default_rng(0)
    for dtype in (np.float32, np.int32, jnp.bfloat16, np.uint8):
        x = np.asarray(rng.integers(0, 100, shape), dtype)
        (usual,) = fingerprints({"x": x}).values()
        for number in range(40):
            raw = x.copy().view(f"uint{8 * x.itemsize}")
            bits = 8 * x.itemsize
            bit = bits - 1 if number % 2 else int(rng.integers(bits))
            raw[tuple(map(rng.integers, shape))] ^= raw.dtype.type(1 << bit)
            assert fingerprints({"x": raw.view(x.dtype)}) != {"['x']": usual}
        swapped = x.copy()
        swapped[[0, 1]] = x[[1, 0]]
        assert fingerprints({"x": swapped}) != {"['x']": usual}
    assert fingerprints({"x": np.float32(0.0)}) != fingerprints({"x": np.float32(-0.0)})


# Disks.


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_failed_write_is_reported_and_leaves_earlier_ones(tmp_path):
    state = make_state(4)
    state.params["large_VD"] = jax.random.normal(jax.random.key(0), (512, 1024))
    saved(tmp_path, 2)
    checkpoints = Checkpoints(str(tmp_path))
    with files_of_at_most(500_000), pytest.raises(CheckpointError) as caught:
        checkpoints.save(state, {})
        checkpoints.save(make_state(6), {})
    assert str(tmp_path) in str(caught.value)
    assert "step 4" in str(caught.value) and "step 6" not in str(caught.value)
    assert "Complete checkpoints: [2]" in str(caught.value)
    assert not differing(restored(tmp_path)[0], make_state(2))
    # With room again, the same step can be saved.
    with opened(tmp_path) as checkpoints:
        checkpoints.save(state, {})
    found, _ = restored(tmp_path, state)
    assert not differing(found, state)


def test_a_record_may_go_on_counting_while_it_is_written(tmp_path, monkeypatch):
    # Held back until the caller has counted on, which a busy machine does by itself.
    written, counts = [], {"nats": 1.0}
    with opened(tmp_path) as checkpoints:
        save = checkpoints._manager.save
        monkeypatch.setattr(
            checkpoints._manager,
            "save",
            lambda step, args, **options: written.append((step, args, options)),
        )
        checkpoints.save(make_state(), {"interval": counts})
        counts["nats"] += 1.0
        ((step, args, options),) = written
        save(step, args=args, **options)
    assert restored(tmp_path)[1]["interval"] == {"nats": 1.0}
