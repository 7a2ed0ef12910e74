"""Makes the shards of a store on Apache Beam, on this machine or a cluster.

Only the shards in the folder count: a job may be killed, repeat work, or outlive its driver.
"""

import abc
import contextlib
import io
import os
import pickle
import threading
import zlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from absl import logging

from brt.data.extras import MissingExtra, extra_library
from brt.data.stores.layout import NOTE, REQUESTS
from brt.data.stores.shards import Run, ShardMaker
from brt.data.stores.worker_pool import pickled
from brt.storage.json_files import Fields, read_json
from brt.storage.paths import RemotePath
from brt.storage.replaced_files import replace_json

LOCAL_RUNNERS = ["direct", "switchingdirect", "bundlebaseddirect", "fnapi", "prism", "interactive"]

NOTED = Fields({"kind": str, "message": str})

LASTING = (ValueError, FileNotFoundError, PermissionError)
"""Lasting errors, noted without a retry; the job continues."""


class JobRunner(abc.ABC):
    """Makes shards by a job; `name` of the runner is for messages."""

    def __init__(self, name: str):
        self.name = name

    @abc.abstractmethod
    def run_job(self, setup: bytes, runs: Sequence[bytes]) -> None:
        """Has workers call `make_shard` for each `packed` run, in any order, and waits."""

    def make(self, maker: ShardMaker, runs: Iterable[Run]) -> Iterator[tuple[bool, dict]]:
        """Makes missing shards; yields, in any order, whether each is new and its shard.json."""
        self._check_sharing(maker)
        runs = list(runs)
        with ThreadPoolExecutor(REQUESTS) as threads:
            summaries = list(threads.map(maker.finished, runs))
            yield from ((False, summary) for summary in summaries if summary)
            missing = [run for run, summary in zip(runs, summaries) if not summary]
            if not missing:
                return
            setup = pickled(maker)
            if setup is None:
                raise ValueError(
                    f"{type(maker.source).__name__} or {type(maker.vocabulary).__name__} cannot be "
                    "sent to workers: define it in a module that they can import."
                )
            logging.info("%s makes %d shards", self.name, len(missing))
            failure = None
            try:
                self.run_job(setup, [packed(run) for run in missing])
            except Exception as error:  # each runner has its own errors
                failure = error
            summaries = list(threads.map(maker.finished, missing))
            if failed := [run for run, summary in zip(missing, summaries) if not summary]:
                raise self._reason(maker, failed, failure) from failure
        if failure:
            logging.warning("The job of %s failed, and made all shards: %s", self.name, failure)
        yield from ((True, summary) for summary in summaries if summary)

    def _reason(
        self, maker: ShardMaker, runs: Sequence[Run], failure: Exception | None
    ) -> Exception:
        if error := next(filter(None, (noted(maker, run) for run in runs)), None):
            return error
        if failure is not None:
            reason = str(failure).strip().split("\n")[-1][:500] or type(failure).__name__
            return OSError(
                f"The job of {self.name} failed ({reason}): finished shards are kept; run the same "
                "command again."
            )
        return OSError(
            f"The job of {self.name} ended, and the shard of {runs[0]} is not in {maker.folder}: "
            "its workers have to see that folder, so bind Corpus.store to a bucket, or to a disk "
            "that all of them share."
        )

    def _check_sharing(self, maker: ShardMaker) -> None:
        short = self.name.lower().rpartition(".")[2].removesuffix("runner")
        if short not in LOCAL_RUNNERS and not isinstance(maker.folder, RemotePath):
            logging.warning(
                "%s is on a disk: if the workers of %s are other machines, all of them have to "
                "share it, under this path. Otherwise bind Corpus.store to a bucket, as "
                "gs://BUCKET/stores.",
                maker.folder,
                self.name,
            )


class BeamRunner(JobRunner):
    """Makes shards by a job of Apache Beam with command-line `options`."""

    def __init__(self, name: str, options: Sequence[str] = ()):
        extra_library("apache_beam", f"--runner={name}", "beam")
        super().__init__(name)
        from apache_beam.options.pipeline_options import PipelineOptions
        from apache_beam.runners.runner import create_runner

        try:
            create_runner(name)
        except ImportError as error:
            raise MissingExtra(
                f"--runner={name} needs more of Apache Beam than is installed ({error}): install "
                "it, as with `pip install 'apache-beam[gcp]'` for Dataflow."
            ) from None
        except (ValueError, AttributeError) as error:
            raise ValueError(f"--runner={name} is not a runner of Apache Beam: {error}") from None
        written = io.StringIO()
        try:
            with contextlib.redirect_stderr(written):
                self.options = PipelineOptions([*options, f"--runner={name}"])
                self.options.get_all_options()
        except SystemExit:  # from argparse
            reason = written.getvalue().strip().split("\n")[-1].rpartition("error: ")[2]
            raise ValueError(
                f"Apache Beam cannot read its options, {' '.join(options)}: {reason}."
            ) from None

    def run_job(self, setup: bytes, runs: Sequence[bytes]) -> None:
        import apache_beam as beam
        from apache_beam.runners.runner import PipelineState

        pipeline = beam.Pipeline(options=self.options)
        _ = (
            pipeline
            | "List shards" >> beam.Create(list(runs), reshuffle=False)
            # Otherwise a runner may fuse both steps and make all shards on one worker.
            | "Spread" >> beam.Reshuffle()
            | "Make shards" >> beam.Map(make_counted, setup)
        )
        result = pipeline.run()
        try:
            state = result.wait_until_finish()
        except BaseException:
            with contextlib.suppress(Exception):
                result.cancel()
            raise
        if state is not None and state != PipelineState.DONE:
            raise RuntimeError(f"The job ended in the state {state}.")


_local = threading.local()
"""The maker of each worker's thread: vocabularies have state."""


def make_counted(run: bytes, setup: bytes) -> None:
    """Makes one shard on a worker; counts its documents, tokens and bytes for the runner."""
    from apache_beam.metrics import Metrics

    if getattr(_local, "setup", None) != setup:
        _local.maker = pickle.loads(setup)
        _local.setup = setup
    summary = make_shard(_local.maker, run) or {}
    for name in ("documents", "tokens", "bytes"):
        Metrics.counter("brt", name).inc(summary.get(name, 0))


def packed(run: Run) -> bytes:
    return zlib.compress(pickle.dumps(run))


def make_shard(maker: ShardMaker, data: bytes) -> dict | None:
    """Makes the shard of a `packed` run on a worker, unless it exists.

    Returns its shard.json; None for a noted error; raises errors that a retry may solve.
    """
    run: Run = pickle.loads(zlib.decompress(data))
    try:
        _check_visible(maker)
        return maker.finished(run) or maker.make(run)
    except Exception as error:
        _note(maker, run, error)
        if isinstance(error, LASTING):
            return None
        raise


def noted(maker: ShardMaker, run: Run) -> Exception | None:
    try:
        note = read_json(maker.folder / f"{run.key}{NOTE}", NOTED, "delete it")
    except (OSError, ValueError):
        return None
    return ValueError(note["message"]) if note["kind"] == "ValueError" else OSError(note["message"])


def _note(maker: ShardMaker, run: Run, error: Exception) -> None:
    kind = "ValueError" if isinstance(error, ValueError) else "OSError"
    message = str(error) or type(error).__name__
    if not isinstance(error, OSError | ValueError):
        message = f"Making the shard of {run} failed with {type(error).__name__}: {message}"
    if isinstance(error, FileNotFoundError):
        message += (
            f" (Worker {os.uname().nodename}: all workers have to see the source's files, and "
            "those of the vocabulary, under these paths.)"
        )
    with contextlib.suppress(OSError):
        replace_json(maker.folder, f"{run.key}{NOTE}", {"kind": kind, "message": message})


def _check_visible(maker: ShardMaker) -> None:
    if isinstance(maker.folder, Path) and not maker.folder.is_dir():
        raise FileNotFoundError(
            f"Worker {os.uname().nodename} does not see {maker.folder}: bind Corpus.store to a "
            "bucket, or to a disk that all workers share."
        )
