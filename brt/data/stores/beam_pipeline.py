"""The pipeline of Apache Beam that makes shards; needs the extra `beam`.

Beam is imported inside the functions, because every command imports all modules.
"""

import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from brt.data.stores.distributed import make_shard, maker_of

if TYPE_CHECKING:
    from apache_beam.options.pipeline_options import PipelineOptions

_local = threading.local()
"""The maker of each thread of a worker: vocabularies have state."""


def make_counted(run: bytes, setup: bytes) -> None:
    """Makes one shard, on a worker; counts documents, tokens and bytes for the runner's display."""
    from apache_beam.metrics import Metrics

    if getattr(_local, "setup", None) != setup:
        _local.maker = maker_of(setup)
        _local.setup = setup
    summary = make_shard(_local.maker, run)
    if summary is None:
        Metrics.counter("brt", "shards not made").inc()
        return
    for name in ("documents", "tokens", "bytes"):
        Metrics.counter("brt", name).inc(summary[name])


def check_runner(name: str) -> None:
    """Refuses an unknown runner (ValueError, AttributeError) or a missing library (ImportError)."""
    from apache_beam.runners.runner import create_runner

    create_runner(name)


def options_of(runner: str, options: Sequence[str]) -> "PipelineOptions":
    """Returns the options of a pipeline; argparse exits if it cannot parse one."""
    from apache_beam.options.pipeline_options import PipelineOptions

    parsed = PipelineOptions([*options, f"--runner={runner}"])
    parsed.get_all_options()
    return parsed


def run(runner: str, options: Sequence[str], setup: bytes, runs: Sequence[bytes]) -> None:
    """Runs the job, and waits until it has ended.

    Args:
        runner, options: as of `BeamRunner`.
        setup, runs: as of `JobRunner.run_job`.
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
