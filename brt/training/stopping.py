"""Requests to stop by signals, at the same step in all processes."""

import contextlib
import os
import signal
from collections.abc import Iterator
from typing import Any

import jax
from jax.experimental import multihost_utils

from brt.host.processes import handling, signals_to_end


class StopRequest:
    """A request to stop (SIGINT, SIGTERM, SIGHUP). signal: that was received, or None."""

    def __init__(self):
        self.signal: int | None = None
        self._sync_points = 0

    def set(self, number: int = signal.SIGTERM, _: Any = None) -> None:
        """Asks the run to save and stop; a second SIGINT aborts it."""
        if number == self.signal == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = number
        if number != signal.SIGTERM and jax.process_count() > 1:
            os.kill(os.getpid(), signal.SIGTERM)

    def is_set(self) -> bool:
        """Returns the same in all processes, which must all call it equally often."""
        if jax.process_count() == 1:
            return self.signal is not None
        self._sync_points += 1
        return multihost_utils.reached_preemption_sync_point(self._sync_points)

    @contextlib.contextmanager
    def signals_handled(self) -> Iterator[None]:
        # With several processes JAX handles SIGTERM, so that all of them stop at the same step.
        numbers = {signal.SIGINT, *signals_to_end()}
        if jax.process_count() > 1:
            numbers.remove(signal.SIGTERM)
        with handling(numbers, self.set):
            yield
