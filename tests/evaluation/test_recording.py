"""Recordings: every token's loss on disk, the same whatever was interrupted on the way."""

import json
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from fabricated_recordings import fabricate
from plain_reading import nats_of, segments, states_of, with_states
from random_runs import random_run
from stores import make_store
from tiny_run import (
    TWO_LAYERS,
    TXL,
    Killed,
    build,
    contents,
    files_of_at_most,
    one_device,
    random_params,
    write_config,
)

from brt.evaluation import recording_writer
from brt.evaluation.evaluator import Evaluator
from brt.evaluation.recording import Recording, check_aligned
from brt.evaluation.recording_writer import record
from brt.evaluation.replay import recorded_scalars
from brt.evaluation.segment_reader import SegmentReader
from brt.storage.json_files import DamagedFile
from brt.storage.replaced_files import replace_file

T, W, ROWS = 16, 8, 3


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Experiment, store, reader and parameters of a model with a state."""
    experiment = build(write_config(tmp_path_factory.mktemp("recurrent"), *TWO_LAYERS)).experiment
    store, params = experiment.open_store("validation"), random_params(experiment)
    mesh = one_device()
    with jax.set_mesh(mesh):
        yield experiment, store, SegmentReader(experiment, mesh, ROWS, T, entropy=True), params


@pytest.fixture(scope="module")
def recorder(made, tmp_path_factory):
    """Makes a recording; one of each kind is made once, in a folder of its own."""
    _, store, reader, params = made
    folder, known = tmp_path_factory.mktemp("recordings"), {}

    def make(state="kept", documents=None, at=None, **changes):
        key = state, None if documents is None else tuple(documents)
        if at is None and key in known:
            return known[key]
        options = {"run": "runs/x", "step": 3, "window": W, **changes}
        path = at or folder / str(len(known))
        own = options.pop("params", params)
        found = record(path, reader, own, store, state=state, documents=documents, **options)
        if at is None:
            known[key] = found
        return found

    return make


def same(one, two, documents):
    """Whether two recordings have the same bytes of some documents."""
    files = ([(r.folder / f"{d}.npz").read_bytes() for d in documents] for r in (one, two))
    return next(files) == next(files)


def plain(made, document, replace=None, **options):
    """Nats, entropies and rightness of a document, and the states before its segments.

    replace: from the number of a segment but the first to the states that it is read with.
    """
    experiment, store, _, params = made

    def change(start, caches):
        return with_states(caches, replace(start // T)) if start and replace else caches

    rows, carried = [], []
    options["change"] = change
    for _, logits, targets, caches in segments(experiment, params, store, document, T, **options):
        log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        entropy = -(np.exp(log_p) * log_p).sum(-1)
        rows += zip(nats_of(logits, targets), entropy, logits.argmax(-1) == targets)
        carried.append(states_of(caches))
    return np.array(rows), carried


def test_a_recording_is_what_a_loop_over_documents_says(made, recorder):
    recording = recorder()
    assert recording.done_D.all()
    for document in range(made[1].num_documents):
        rows, _ = plain(made, document)
        scores = recording.document(document)
        assert np.allclose(scores.nats_T, rows[:, 0], atol=1e-4)
        assert np.allclose(scores.entropy_T, rows[:, 1], atol=1e-4)
        assert scores.correct_T.tolist() == rows[:, 2].astype(bool).tolist()
        part, rest = recording.document(document, 1, 20), slice(1, 20)
        assert all(np.array_equal(a, b[rest]) for a, b in zip(part, scores))


@pytest.mark.parametrize("state", ["cleared", "zeroed"])
def test_states_are_replaced_before_every_segment(made, recorder, state):
    initial = states_of(made[0].bind(made[3]).init_caches(1))
    other = {"cleared": initial, "zeroed": np.zeros_like(initial)}[state]
    recording = recorder(state)
    rows, _ = plain(made, 6, lambda number: other)
    found = recording.document(6).nats_T
    assert np.allclose(found, rows[:, 0], atol=1e-4)
    kept = recorder().document(6).nats_T
    # A document begins with the learned state, whatever was done to the one before.
    assert np.array_equal(found[:T], kept[:T])
    assert np.abs(found[T:] - kept[T:]).max() > 1e-3


def test_a_swapped_state_is_the_next_documents_at_that_place(made, recorder):
    # Two documents in three rows: they meet, and the empty row does not.
    recording = recorder("swapped", [5, 6])
    assert recording.done_D.tolist() == [False] * 5 + [True, True]
    carried = {d: plain(made, d)[1] for d in (5, 6)}
    last = {d: len(carried[d]) for d in (5, 6)}
    assert last == {5: 4, 6: 7}

    expected, _ = plain(made, 5, lambda number: carried[6][number], keep_own=True)
    assert np.allclose(recording.document(5).nats_T, expected[:, 0], atol=1e-4)
    # Up to the end of document 5, whose last state is used afterwards.
    expected, _ = plain(made, 6, lambda number: carried[5][min(number, 3)], keep_own=True)
    both = slice(last[5] * T)
    assert np.allclose(recording.document(6).nats_T[both], expected[both, 0], atol=1e-4)


def test_an_evaluation_of_recordings_is_the_evaluation(made, recorder):
    experiment, store, _, params = made
    evaluation = experiment.evaluation
    evaluation.tokens_per_step, evaluation.segment_length = ROWS * T, T
    evaluator = Evaluator(experiment, store, one_device())
    for meliad in (False, True):
        evaluation.meliad_scoring = meliad
        direct = evaluator.run(params)
        replayed = recorded_scalars(evaluator, {s: recorder(s) for s in ("kept", "cleared")})
        assert direct.keys() == replayed.keys() and "cleared_accuracy" in direct
        for name, value in direct.items():
            assert replayed[name] == pytest.approx(value, rel=1e-12), name
    evaluation.meliad_scoring = False


# Interrupted.


@pytest.mark.parametrize("stop", [1, 2, 4, 6])
def test_a_killed_recording_goes_on_and_ends_in_the_same_bytes(
    made, recorder, tmp_path, monkeypatch, stop
):
    reader, read = made[2], made[2].read
    whole, steps = recorder(), []

    def killed(*arguments, **options):
        for number, segment in enumerate(read(*arguments, **options)):
            if number == stop:
                raise Killed
            yield segment

    monkeypatch.setattr(reader, "read", killed)
    with pytest.raises(Killed):
        recorder(at=tmp_path / "r")
    done = Recording(tmp_path / "r", made[1]).done_D
    assert not done.all()

    def counted(params, stream, *arguments, **options):
        steps.append({int(d) for n in range(stream.num_steps) for d in stream.positions(n)[0]})
        return read(params, stream, *arguments, **options)

    monkeypatch.setattr(reader, "read", counted)
    finished = recorder(at=tmp_path / "r")
    assert steps[0] - {-1} == set(np.flatnonzero(~done))
    assert finished.done_D.all() and same(finished, whole, range(7))
    recorder(at=tmp_path / "r")
    assert len(steps) == 1  # nothing is left to read


def test_other_parameters_begin_a_recording_anew(made, recorder, tmp_path):
    recorder(documents=[0, 6], at=tmp_path / "r")
    params = jax.tree.map(lambda x: x * 1.1, made[3])
    again = recorder(documents=[0], at=tmp_path / "r", params=params)
    assert again.done_D.tolist() == [True] + [False] * 6
    later = recorder(documents=[6], at=tmp_path / "r", params=params, step=4)
    assert later.done_D.tolist() == [False] * 6 + [True] and later.manifest["step"] == 4


def test_other_settings_of_the_model_begin_a_recording_anew(tmp_path):
    def nats(*lines):
        with random_run(tmp_path, *TXL, *lines, length=T, window=T) as run:
            return run.recording("kept", [6]).document(6).nats_T

    longer = (
        "Evaluation.model = @evaluation/TransformerXL",
        "evaluation/TransformerXL.memory_length",
    )
    first, other = nats(), nats(longer[0], f"{longer[1]} = 48")
    assert (first != other)[32:].all() and (first == nats("Evaluation.cleared = False")).all()


# What cannot be read or compared.


def test_recordings_of_other_documents_are_not_compared(recorder, store_of, tmp_path):
    stores = store_of([3, 4]), store_of([3, 5])
    one, two = (
        fabricate(tmp_path / str(n), store, [np.ones(length) for length in store.lengths_D])
        for n, store in enumerate(stores)
    )
    check_aligned(one, one)
    with pytest.raises(ValueError, match=r"Corpus\.store"):
        check_aligned(one, two)
    with pytest.raises(ValueError, match=r"ids of size 100000 .* bytes"):
        check_aligned(one, recorder())
    with pytest.raises(ValueError, match="tokens"):
        Recording(one.folder, stores[1])
    assert Recording(one.folder).document(1).nats_T.tolist() == [1] * 4  # finds its store


def test_a_damaged_document_is_named(recorder, tmp_path):
    recording = recorder(documents=[0, 6], at=tmp_path / "r")
    path = tmp_path / "r" / "6.npz"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    for found in (content, content[:100]):
        path.write_bytes(found)
        with pytest.raises(ValueError, match=r"r/6\.npz is damaged .* delete it and record again"):
            Recording(tmp_path / "r", recording.store).document(6)
    np.savez(path, nats=np.ones(3, "f4"), entropy=np.ones(3, "f4"), correct=np.ones(3, bool))
    with pytest.raises(ValueError, match=r"no score for each token"):
        Recording(tmp_path / "r", recording.store).document(6)
    path.unlink()
    assert same(recorder(documents=[0, 6], at=tmp_path / "r"), recording, [0, 6])


def test_other_rows_of_a_batch_are_not_kept(tmp_path):
    """A document is long beside the others of its batch."""
    rows, length, steps = 64, 1000, 50
    store = make_store(tmp_path / "store", [length * steps])

    def segments():
        for step in range(steps):
            zeros_BT = np.zeros((rows, length), np.float32)
            documents_B = np.where(np.arange(rows), -1, 0)
            offsets_B = np.full(rows, step * length)
            yield SimpleNamespace(
                documents_B=documents_B, offsets_B=offsets_B, nats_BT=zeros_BT,
                entropy_BT=zeros_BT.copy(), correct_BT=zeros_BT > 0,
            )  # fmt: skip

    tracemalloc.start()
    ((number, scores),) = recording_writer._whole_documents(tmp_path, segments(), store)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert number == 0 and len(scores["nats"]) == length * steps and most < 4 * 2**20


def test_a_full_disk_is_named_and_the_recording_stays(recorder, tmp_path, monkeypatch):
    recorder(documents=[0, 1], at=tmp_path / "r")

    def full(*arguments):
        with files_of_at_most(0):
            replace_file(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(recording_writer, "replace_file", full)
        with pytest.raises(OSError, match=r"Cannot write .*r/\d+\.npz"):
            recorder(at=tmp_path / "r")
    assert Recording(tmp_path / "r").done_D.tolist() == [True] * 2 + [False] * 5
    assert same(recorder(at=tmp_path / "r"), recorder(), range(7))


def test_a_non_finite_loss_is_named_and_earlier_documents_stay(
    made, recorder, tmp_path, monkeypatch
):
    recorder(documents=[0, 6], at=tmp_path / "r")
    reader, read = made[2], made[2].read

    def diverging(*arguments, **options):
        for segment in read(*arguments, **options):
            nats_BT = np.array(segment.nats_BT)
            nats_BT[(segment.documents_B == 5) & (segment.offsets_B == T), 3] = np.inf
            nats_BT[segment.weights_BT == 0] = np.nan  # padding may be anything
            yield segment._replace(nats_BT=nats_BT)

    monkeypatch.setattr(reader, "read", diverging)
    with pytest.raises(ValueError, match=r"token 19 of document 5 is not finite"):
        recorder(at=tmp_path / "r")
    found = Recording(tmp_path / "r", made[1])
    assert found.done_D[[0, 6]].all() and not found.done_D[5]


# Folders and files of others.


def test_a_manifest_of_more_documents_than_fit_is_refused(recorder, tmp_path):
    folder = recorder(documents=[0], at=tmp_path / "r").folder
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"documents": 2**40}))
    with pytest.raises(DamagedFile, match="documents"):
        Recording(folder)


@pytest.mark.parametrize("manifest", [None, "{}", '{"format": 1}', '{"format": 2, "source": {}}'])
@pytest.mark.parametrize("name", ["chapters/1.txt", "nats.bin", "01.npz"])
def test_a_folder_that_is_no_recording_is_left_alone(recorder, tmp_path, name, manifest):
    file = tmp_path / "r" / name
    file.parent.mkdir(parents=True)
    file.write_text("years of work")
    if manifest:
        (tmp_path / "r" / "manifest.json").write_text(manifest)
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=rf"^{tmp_path}/r .* holds {name.partition('/')[0]}"):
        recorder(documents=[0], at=tmp_path / "r")
    assert contents(tmp_path) == before


def test_foreign_files_in_a_recording_are_not_removed(made, recorder, tmp_path):
    recorder(documents=[0], at=tmp_path / "r")
    (tmp_path / "r" / "thesis.txt").write_text("years of work")
    before = contents(tmp_path)
    params = jax.tree.map(lambda x: x * 1.1, made[3])
    with pytest.raises(ValueError, match=r"thesis\.txt"):
        recorder(documents=[0], at=tmp_path / "r", params=params)
    assert contents(tmp_path) == before
    (tmp_path / "r" / "thesis.txt").unlink()
    again = recorder(documents=[0], at=tmp_path / "r", params=params)
    assert again.done_D.tolist() == [True] + [False] * 6
    assert not list(tmp_path.rglob(".*"))


@pytest.mark.parametrize("kept", [0, 1, 2, 3])
def test_a_kill_while_a_recording_is_replaced_is_made_good(
    made, recorder, tmp_path, monkeypatch, kept
):
    """Of the manifest and two documents of another recording, some are removed."""
    recorder(documents=[0, 6], at=tmp_path / "r")
    (tmp_path / "r" / ".brt-0123456789abcdef.new").write_text("{")
    unlink, removed = Path.unlink, []

    def killed(path):
        removed.append(path.name)
        if len(removed) > kept:
            raise Killed
        unlink(path)

    params = jax.tree.map(lambda x: x * 1.1, made[3])
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", killed)
        with pytest.raises(Killed):
            recorder(documents=[0], at=tmp_path / "r", params=params)
    again = recorder(documents=[0], at=tmp_path / "r", params=params)
    assert again.done_D.tolist() == [True] + [False] * 6
    assert {path.name for path in (tmp_path / "r").iterdir()} == {"0.npz", "manifest.json"}
    assert not same(again, recorder(), [0])
