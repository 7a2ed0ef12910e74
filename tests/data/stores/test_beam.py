"""Apache Beam's local runners write the bytes of one process, killed or not; needs the extra."""

import os
import signal
import subprocess
import sys
import time

import pytest
from jobs import corpus, encoders, files_of, finished, is_left, prepare, seen, ten_files, write
from paths import ROOT

from brt.data.stores.distributed import BeamRunner

pytest.importorskip("apache_beam", reason="needs the extra `beam`: Apache Beam is not installed")

# What Beam and what it imports deprecate is not ours.
pytestmark = pytest.mark.filterwarnings("ignore")

THREADS = ["--direct_running_mode=multi_threading", "--direct_num_workers=3"]
PROCESSES = ["--direct_running_mode=multi_processing", "--direct_num_workers=2"]

PREPARE = """
import sys
from brt.data.corpus import Corpus
from brt.data.sources.files import TextFiles
from brt.data.stores import shards
from brt.data.stores.distributed import BeamRunner
from preparation_reference import Slow

folder, *options = sys.argv[1:]
shards.SHARD_BYTES = 150
made = Corpus(folder + "/job", TextFiles(folder + "/text"), Slow(folder + "/seen"))
made.prepare("train", quiet=True, runner=BeamRunner("FnApiRunner", options))
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    with ten_files(tmp_path, monkeypatch) as folder:
        yield folder


def start(place, options):
    """Begins a preparation in a process of its own, which does not import JAX."""
    paths = [ROOT, ROOT / "tests" / "reference"]
    return subprocess.Popen(
        [sys.executable, "-c", PREPARE, str(place), *options],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def is_running(process):
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("name", ["DirectRunner", "FnApiRunner"])
@pytest.mark.parametrize("options", [[], THREADS])
def test_a_runner_here_writes_the_bytes_of_one_process(place, name, options):
    prepare(one := corpus(place, "one"))
    seen(place)
    prepare(job := corpus(place, "job", remote=True), BeamRunner(name, options))
    assert files_of(one) == files_of(job) and seen(place) == list("0123456789")
    sharded, ours = corpus(place, "sharded"), corpus(place, "ours")
    prepare(sharded, shard_bytes=250)
    prepare(ours, BeamRunner(name, options), shard_bytes=250)
    assert files_of(sharded) == files_of(ours) and not is_left(ours)


@pytest.mark.slow
def test_several_processes_write_it_too_and_a_killed_job_goes_on(place):
    prepare(one := corpus(place, "one"))
    seen(place)
    job = corpus(place, "job")
    process = start(place, PROCESSES)
    until = time.monotonic() + 120
    while not finished(job):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < until
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    workers = encoders(place)
    process.wait()
    assert not job.exists("train") and process.pid not in workers
    while any(map(is_running, workers)):  # the workers end with the driver
        assert time.monotonic() < until + 60
        time.sleep(0.1)
    process.stdout.close()
    before = finished(job)
    assert 0 < len(before) < 5
    seen(place)
    process = start(place, PROCESSES)
    output = process.communicate(timeout=200)[0]
    assert process.returncode == 0, output
    assert len(encoders(place)) == 2 or len(before) > 3
    assert len(seen(place)) == 10 - 2 * len(before)  # what was finished is not made again
    assert files_of(one) == files_of(job) and not is_left(job)


def test_a_document_that_cannot_be_ends_in_its_sentence(place, capfd):
    write(place, 3, b"big")
    with pytest.raises(ValueError, match=r"'3' has token id 300, outside .*/3\.txt\.$"):
        prepare(corpus(place), BeamRunner("FnApiRunner"))
    assert "Traceback" not in "".join(capfd.readouterr())
    assert len(finished(corpus(place))) == 4


def test_a_bucket_that_workers_do_not_see_is_told(place, monkeypatch):
    """memory:// is the memory of one process."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # the workers' vocabulary
    with pytest.raises(OSError, match=r"not in memory://.*: its workers have to see that folder"):
        prepare(corpus(place, remote=True), BeamRunner("FnApiRunner", PROCESSES))
