"""The job that makes shards, as a pipeline of Apache Beam; needs the extra `beam`.

Beam is imported inside the functions: all modules are imported by every command, and it takes
seconds.
"""

import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from brt.data.stores.distributed import make_shard, maker_of

if TYPE_CHECKING:
    from apache_beam.options.pipeline_options import PipelineOptions

_own = threading.local()
"""The maker of each thread of a worker, and what it was made from: vocabularies have state."""


def make_counted(run: bytes, setup: bytes) -> None:
    """Makes one shard, on a worker; counts documents, tokens and bytes, which runners may show.

    Args:
        run: as `distributed.packed` returns it.
        setup: the maker of the shards, as `worker_pool.pickled` returns it.
    """
    from apache_beam.metrics import Metrics

    if getattr(_own, "setup", None) != setup:
        _own.maker = maker_of(setup)
        _own.setup = setup
    summary = make_shard(_own.maker, run)
    if summary is None:
        Metrics.counter("brt", "shards not made").inc()
        return
    for name in ("documents", "tokens", "bytes"):
        Metrics.counter("brt", name).inc(summary[name])


def check_runner(name: str) -> None:
    """Refuses what is no runner.

    Raises:
        ValueError, AttributeError: there is no such runner.
        ImportError: what it needs is not installed.
    """
    from apache_beam.runners.runner import create_runner

    create_runner(name)


def options_of(runner: str, options: Sequence[str]) -> "PipelineOptions":
    """Returns the options of a pipeline; argparse ends the process over one it cannot read."""
    from apache_beam.options.pipeline_options import PipelineOptions

    read = PipelineOptions([*options, f"--runner={runner}"])
    read.get_all_options()
    return read


def run(runner: str, options: Sequence[str], setup: bytes, runs: Sequence[bytes]) -> None:
    """Runs the job, and waits until it has ended.

    Args:
        runner, options: as of `BeamRunner`.
        setup: as of `make_counted`.
        runs: what to make, as `distributed.packed` returns it.

    Raises:
        Exception: the job failed; a runner's own.
    """
    import apache_beam as beam
    from apache_beam.runners.runner import PipelineState

    pipeline = beam.Pipeline(options=options_of(runner, options))
    _ = (
        pipeline
        | "List shards" >> beam.Create(list(runs), reshuffle=False)
        # Without it a runner may make all of them where they were listed.
        | "Spread" >> beam.Reshuffle()
        | "Make shards" >> beam.Map(make_counted, setup)
    )
    result = pipeline.run()
    try:
        state = result.wait_until_finish()
    except BaseException:
        with suppress(Exception):
            result.cancel()
        raise
    if state is not None and state != PipelineState.DONE:
        raise RuntimeError(f"The job ended in the state {state}.")
