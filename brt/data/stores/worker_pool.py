"""Makes the shards of a store in several processes of this machine."""

import os
import pickle
import signal
import sys
import threading
import types
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, as_completed, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import chain, islice
from multiprocessing import connection, get_context, parent_process

from brt.data.stores.shards import Run, ShardMaker

MAX_SENT_BYTES = 2**26
"""Larger documents of a stream are encoded in this process."""


def make_in_processes(
    workers: int, maker: ShardMaker, runs: Iterable[Run]
) -> Iterator[tuple[bool, dict]]:
    """Makes missing shards in `workers` processes; for one worker or one run, in this process.

    Yields:
        For each run, in any order: whether its shard is new, and its shard.json.
    """
    runs = iter(runs)
    first = list(islice(runs, 2 if workers > 1 else 0))
    setup = pickled(maker) if len(first) == 2 else None
    runs = chain(first, runs)
    try:
        yield from _make_in_pool(workers, maker, setup, runs) if setup else _make_here(maker, runs)
    except BrokenProcessPool:
        raise ChildProcessError(
            f"A worker that prepared {maker.folder} was killed, perhaps for want of memory: run "
            "the same command again, with a smaller --workers if need be. Finished shards are kept."
        ) from None


def _make_in_pool(
    workers: int, maker: ShardMaker, setup: bytes, runs: Iterator[Run]
) -> Iterator[tuple[bool, dict]]:
    pending: set[Future] = set()
    with ProcessPoolExecutor(workers, get_context("spawn"), _set_up, (setup,)) as pool:
        for run in runs:
            if summary := maker.finished(run):
                yield False, summary
            elif maker.source is None and (
                run.size > MAX_SENT_BYTES or any(d.tokens is not None for d in run.documents)
            ):
                yield True, maker.make(run)
            else:
                with _main_module_hidden():
                    pending.add(pool.submit(_make, run))
            if len(pending) > workers:
                done, pending = wait(pending, return_when=FIRST_COMPLETED)
                yield from ((True, future.result()) for future in done)
        yield from ((True, future.result()) for future in as_completed(pending))


def _make_here(maker: ShardMaker, runs: Iterator[Run]) -> Iterator[tuple[bool, dict]]:
    for run in runs:
        summary = maker.finished(run)
        yield (False, summary) if summary else (True, maker.make(run))


_maker: ShardMaker


def _set_up(setup: bytes) -> None:
    global _maker
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles ctrl-C
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _maker = pickle.loads(setup)


def _make(run: Run) -> dict:
    return _maker.make(run)


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


def pickled(maker: ShardMaker) -> bytes | None:
    """Returns the maker as bytes; None if it depends on the main module, which workers lack."""
    try:
        with _main_module_hidden():
            return pickle.dumps(maker)
    except (pickle.PicklingError, AttributeError, TypeError):
        return None


@contextmanager
def _main_module_hidden() -> Iterator[None]:
    """Hides the main module, which `spawn` would import, with JAX, in every worker."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
