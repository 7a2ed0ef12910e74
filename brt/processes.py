"""The processes of one run: they begin only if they were started alike, and they end together.

JAX waits for a process that is gone: for minutes, and then it aborts without a word that helps.
Here each process tells the others through JAX's coordination service that it is alive, or why it
ended, and one that misses another ends with a sentence. A run of one process does nothing of this.
"""

import contextlib
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

# Private, for want of a public way to the service's keys and values.
from jax._src.distributed import global_state

BEAT = 5.0
"""Seconds between two signs of life."""
SILENCE = 60.0
"""Seconds without one after which a process counts as lost."""
MEETING = 3600
"""Seconds that a process waits for the others to say how they were started."""
AGAIN = "Start all processes again: they go on from the newest checkpoint."
ALIVE = "brt/alive/"
FAILED_COLLECTIVE = re.compile(
    "(ABORTED|CANCELLED|DEADLINE_EXCEEDED|FAILED_PRECONDITION|INTERNAL|UNAVAILABLE|UNKNOWN): "
)
DONE = "done"
FAILED = "failed: "

_watch: "Watch | None" = None


def ends_asked_for() -> tuple[int, ...]:
    """Returns the signals that ask a process to end: SIGTERM, and SIGHUP of a closed terminal.

    Without SIGHUP where it is ignored, as `nohup` has it.
    """
    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return (signal.SIGTERM,) if ignored else (signal.SIGTERM, signal.SIGHUP)


class Watch:
    """Tells the other processes that this one is alive, and ends it when one of them is not.

    Args:
        number: of this process. count: of all.
    """

    def __init__(self, number: int, count: int):
        self.number = number
        self.count = count
        self._ended = threading.Event()
        self._answered = time.monotonic()
        # Asking blocks while process 0, where the service is, hangs: another thread counts seconds.
        for target in (self._run, self._guard):
            threading.Thread(target=target, name="processes", daemon=True).start()

    def end(self, why: str) -> None:
        """Tells the others that this process ended, `DONE` or `FAILED` and a sentence."""
        self._ended.set()
        self._say(why)

    def _run(self):
        seen: dict[int, tuple[str, float]] = {}
        beats = 0
        while not self._ended.wait(BEAT):
            beats += 1
            try:
                self._say(str(beats))
                found = dict(_client().key_value_dir_get(ALIVE))
            except Exception as error:
                reason = str(error).partition("\n")[0]
                missed = f"Process 0, which all others meet at, does not answer ({reason})."
            else:
                self._answered = time.monotonic()
                missed = self._missed(found, seen)
            if missed and not self._ended.is_set():
                leave(missed)
                return

    def _guard(self):
        while not self._ended.wait(BEAT):
            if time.monotonic() - self._answered > SILENCE + BEAT:
                leave(
                    f"Process 0, which all others meet at, has not answered for {SILENCE:.0f} "
                    "seconds: it hangs, or its machine is gone."
                )
                return

    def _missed(self, found, seen):
        """Returns a sentence about a process that failed or fell silent, or None."""
        now = time.monotonic()
        for number in range(self.count):
            said = found.get(f"{ALIVE}{number}", "")
            if said.startswith(FAILED):
                return f"Process {number} ended: {said.removeprefix(FAILED)}"
            if said == DONE or number == self.number:
                continue
            if number not in seen or seen[number][0] != said:
                seen[number] = said, now
            elif now - seen[number][1] > SILENCE:
                return (
                    f"Process {number} has given no sign of life for {SILENCE:.0f} seconds: it "
                    "hangs, or its machine is gone."
                )
        return None

    def _say(self, text):
        _client().key_value_set(f"{ALIVE}{self.number}", text, allow_overwrite=True)


def _client() -> Any:
    return global_state.client


def leave(why: str) -> None:
    """Ends this process at once, with a sentence.

    An ordinary exit would wait for the process that is missed.
    """
    with contextlib.suppress(OSError):  # a terminal that is gone
        print(f"\nError: {why} {AGAIN}", file=sys.stderr, flush=True)
    os._exit(1)


def watch() -> None:
    """Begins to watch the other processes, if this one has any."""
    global _watch
    if global_state.client is not None and global_state.num_processes > 1 and _watch is None:
        _watch = Watch(global_state.process_id, global_state.num_processes)


def is_watched() -> bool:
    """Tells if this process is one of several."""
    return _watch is not None


def is_failed_collective(error: Exception) -> bool:
    """Tells if an error is that other processes cannot be reached, by the status it begins with.

    JAX raises it as JaxRuntimeError where a step is run, and as ValueError where an array is read.
    """
    return FAILED_COLLECTIVE.match(str(error)) is not None


def end(error: str | None = None) -> None:
    """Tells the other processes that this one is done, or with which error it ends."""
    global _watch
    if _watch is not None:
        with contextlib.suppress(Exception):  # of a service that nobody answers for any more
            _watch.end(DONE if error is None else FAILED + error)
            if error is not None and _watch.number == 0:
                time.sleep(1.2 * BEAT)  # the service ends with this process: let the others read
        _watch = None


def agree(about: str, said: Mapping[str, str]) -> None:
    """Waits for all processes and compares what they say.

    Args:
        about: names the meeting; all processes hold the same meetings in the same order.
        said: name to value; what differs is named to the person.

    Raises:
        ValueError: a process says something else than process 0, in every process.
    """
    if _watch is None:
        return
    client = _client()
    client.key_value_set(f"brt/{about}/{_watch.number}", json.dumps(dict(said)))
    told = [
        json.loads(client.blocking_key_value_get(f"brt/{about}/{number}", MEETING * 1000))
        for number in range(_watch.count)
    ]
    lines = [
        f"  {name}: {told[0].get(name, '(none)')} in process 0, "
        f"{other.get(name, '(none)')} in process {number}"
        for number, other in enumerate(told)
        for name in sorted({**told[0], **other})
        if told[0].get(name) != other.get(name)
    ]
    if lines:
        raise ValueError(
            f"The processes of this run were not started alike ({about}):\n"
            + "\n".join(lines)
            + "\nGive all of them the same command, code and files."
        )
