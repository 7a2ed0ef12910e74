"""Makes the shards of a store in several processes of this machine.

Workers are processes of their own that know nothing of this one's: they import neither JAX nor the
program that asks for the store. What a source or a vocabulary needs is sent to them once.
"""

import os
import pickle
import signal
import sys
import threading
import types
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from multiprocessing import connection, get_context, parent_process
from typing import Any

from brt.data.stores.shards import Run, ShardMaker

SENT_BYTES = 2**26
"""More than this is not sent to a worker, but encoded where it was read."""


class WorkerPool:
    """Makes shards in so many processes; with one of them, or for one run, in this process."""

    def __init__(self, workers: int):
        self.workers = workers

    def make(self, maker: ShardMaker, runs: Iterable[Run]) -> Iterator[tuple[bool, dict]]:
        """Makes the shards of `runs` that are not there yet, as `ShardRunner`.

        Raises:
            ChildProcessError: a worker was killed.
            OSError, ValueError: as making a shard.
        """
        found: list[dict] = []

        def missing() -> Iterator[Run]:
            for run in runs:
                if summary := maker.finished(run):
                    found.append(summary)
                else:
                    yield run

        for summary in self._make_missing(maker, missing()):
            yield from ((False, old) for old in _taken(found))
            yield True, summary
        yield from ((False, old) for old in _taken(found))

    def _make_missing(self, maker: ShardMaker, runs: Iterator[Run]) -> Iterator[dict]:
        first = list(islice(runs, 2 if self.workers > 1 else 0))
        runs = chain(first, runs)
        setup = pickled(maker) if len(first) == 2 else None
        if setup is None:
            for run in runs:
                yield maker.make(run)
            return
        crew: list[_Worker] = []
        idle: list[_Worker] = []
        busy: dict[Any, _Worker] = {}  # by their connections

        def finished() -> Iterator[dict]:
            for ready in connection.wait(list(busy)):
                worker = busy.pop(ready)
                summary = worker.answer()
                idle.append(worker)
                yield summary

        try:
            for run in runs:
                if maker.source is None and (run.size > SENT_BYTES or _has_tokens(run)):
                    yield maker.make(run)
                    continue
                if not idle and len(crew) < self.workers:
                    crew.append(_Worker(setup))
                    idle.append(crew[-1])
                while not idle:
                    yield from finished()
                worker = idle.pop()
                worker.give(run)
                busy[worker.connection] = worker
            while busy:
                yield from finished()
        finally:
            for worker in crew:
                worker.end()


class _Worker:
    """A process that makes one shard at a time."""

    def __init__(self, setup: bytes):
        self.run: Run | None = None
        self.connection, theirs = connection.Pipe()
        self.process = get_context("spawn").Process(target=_work, args=(theirs, setup), daemon=True)
        with _main_module_hidden():
            self.process.start()
        theirs.close()

    def give(self, run: Run) -> None:
        """Sends a run, whose shard is then made."""
        self.run = run
        try:
            self.connection.send(run)
        except OSError:
            raise self._lost() from None

    def answer(self) -> dict:
        """Returns what the shard.json of the run says, or raises what making it raised."""
        try:
            answer = self.connection.recv()
        except (EOFError, OSError):
            raise self._lost() from None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def end(self) -> None:
        """Ends the process; whatever it was making is made anew another time."""
        self.connection.close()
        self.process.terminate()
        self.process.join()

    def _lost(self) -> ChildProcessError:
        self.process.join(10)
        code = self.process.exitcode
        how = f"killed by signal {-code}" if code and code < 0 else f"ended with status {code}"
        return ChildProcessError(
            f"The worker that prepared {self.run} was {how}, perhaps for want of memory: run the "
            "same command again, with a smaller --workers if need be. What is finished is kept."
        )


def _work(requests: Any, setup: bytes) -> None:
    """Makes the shards of all runs that come through a connection: the main loop of a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ctrl-C is for the process that ends this one
    threading.Thread(target=_end_with_parent, daemon=True).start()
    maker = pickle.loads(setup)
    while True:
        try:
            run = requests.recv()
        except EOFError:
            return
        try:
            answer = maker.make(run)
        except Exception as error:
            answer = _portable(error)
        requests.send(answer)


def _end_with_parent() -> None:
    """Ends this process with its parent, so that a killed preparation leaves no writer behind."""
    parent = parent_process()
    assert parent is not None  # workers have one
    connection.wait([parent.sentinel])
    os._exit(1)


def _portable(error: Exception) -> Exception:
    """Returns an error that survives being sent."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def pickled(maker: ShardMaker) -> bytes | None:
    """Returns the maker as bytes; None when it cannot leave this process.

    What is defined in the main module cannot: workers do not import that.
    """
    try:
        with _main_module_hidden():
            return pickle.dumps(maker)
    except (pickle.PicklingError, AttributeError, TypeError):
        return None


@contextmanager
def _main_module_hidden() -> Iterator[None]:
    """Replaces the main module by an empty one for a while.

    `spawn` would have every worker import the main module, JAX and all, and a script without
    `if __name__ == "__main__"` would run once more in each.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _has_tokens(run: Run) -> bool:
    return any(document.tokens is not None for document in run.documents)


def _taken(found: list[dict]) -> list[dict]:
    """Empties a list; returns what was in it."""
    taken = found[:]
    found.clear()
    return taken
