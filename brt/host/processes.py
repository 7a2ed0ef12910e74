"""The processes of one run, which start with equal settings and end together.

JAX's coordination service watches them: if one is killed or hangs, it ends the others after
`HEARTBEAT_TIMEOUT`; a collective that fails earlier ends them at once.
"""

import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from brt.host import slurm

HEARTBEAT_TIMEOUT = 60
"""Seconds without a heartbeat until a process counts as lost."""
FAILED_COLLECTIVE = re.compile(
    "(ABORTED|CANCELLED|DEADLINE_EXCEEDED|FAILED_PRECONDITION|INTERNAL|UNAVAILABLE|UNKNOWN): "
)


def signals_to_end() -> tuple[int, ...]:
    """Returns the signals that ask a process to end; not SIGHUP where `nohup` ignores it."""
    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return (signal.SIGTERM,) if ignored else (signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def handling(numbers: Iterable[int], handler: Callable[[int, Any], None]) -> Iterator[None]:
    """Handles these signals, in the main thread."""
    previous = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)


def join(
    coordinator: str | None = None, count: int | None = None, number: int | None = None
) -> None:
    """Joins the other processes, found by JAX where the coordinator is None."""
    gpus = slurm.gpus_of_task(os.environ)
    jax.distributed.initialize(
        *(coordinator, count, number, gpus), heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT
    )
    slurm.check_gpus(gpus)


def is_one_of_several() -> bool:
    return jax.distributed.is_initialized()


def is_failed_collective(error: Exception) -> bool:
    """Returns whether an error's status means that other processes are unreachable.

    JAX raises it as JaxRuntimeError where a step is run, and as ValueError where an array is read.
    """
    return FAILED_COLLECTIVE.match(str(error)) is not None


def leave(message: str = "", status: int = 1) -> None:
    """Ends this process at once, without waiting for the others."""
    with contextlib.suppress(OSError):  # the terminal is gone
        if message:
            print(f"\nError: {message}", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


def check_same(about: str, values: Mapping[str, str]) -> None:
    """Waits for all processes, and raises in all of them if their values differ.

    Args:
        about: the compared values, for the message.
    """
    if jax.process_count() == 1:
        return
    text = json.dumps(dict(values)).encode()
    length = int(multihost_utils.process_allgather(np.int32(len(text))).max())
    padded = np.frombuffer(text.ljust(length), np.uint8)
    texts = [bytes(row) for row in multihost_utils.process_allgather(padded)]
    if lines := differences([json.loads(text) for text in texts]):
        raise ValueError(
            f"The processes of this run were not started alike ({about}):\n  "
            + "\n  ".join(lines)
            + "\nGive all of them the same command, code and files."
        )


def differences(values: Sequence[Mapping[str, str]]) -> list[str]:
    first = values[0]
    return [
        f"{name}: {first.get(name, '(none)')} in process 0, "
        f"{other.get(name, '(none)')} in process {number}"
        for number, other in enumerate(values)
        for name in sorted({**first, **other})
        if first.get(name) != other.get(name)
    ]
