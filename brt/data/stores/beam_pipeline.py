"""The job that makes shards, as a pipeline of Apache Beam; needs the extra `beam`."""

from collections.abc import Sequence
from contextlib import suppress

import apache_beam as beam
from apache_beam.metrics import Metrics
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.runner import PipelineState, create_runner

from brt.data.stores.distributed import make_shard, maker_of


class MakeShards(beam.DoFn):
    """Makes the shard of each run; gives nothing on.

    Args:
        setup: the maker of the shards, as `worker_pool.pickled` returns it.
    """

    def __init__(self, setup: bytes):
        self._setup = setup

    def setup(self) -> None:
        """Takes up the maker, once in a worker."""
        self._maker = maker_of(self._setup)

    def process(self, run: bytes) -> None:
        """Makes one shard; counts its documents, tokens and bytes, which a runner may show."""
        summary = make_shard(self._maker, run)
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
    create_runner(name)


def options_of(runner: str, options: Sequence[str]) -> PipelineOptions:
    """Returns the options of a pipeline; argparse ends the process over one it cannot read."""
    read = PipelineOptions([*options, f"--runner={runner}"])
    read.get_all_options()
    return read


def run(runner: str, options: Sequence[str], setup: bytes, runs: Sequence[bytes]) -> None:
    """Runs the job, and waits until it has ended.

    Args:
        runner, options: as of `BeamRunner`.
        setup: as of `MakeShards`.
        runs: what to make, as `distributed.packed` returns it.

    Raises:
        Exception: the job failed; a runner's own.
    """
    pipeline = beam.Pipeline(options=options_of(runner, options))
    _ = (
        pipeline
        | "List shards" >> beam.Create(list(runs), reshuffle=False)
        # Without it a runner may make all of them where they were listed.
        | "Spread" >> beam.Reshuffle()
        | "Make shards" >> beam.ParDo(MakeShards(setup))
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
