"""Alerts about a run: warnings and scalars `alert/*`."""

import math
import re
import statistics
import threading
import time
from collections.abc import Callable, Mapping

from absl import logging

DEAD_SHARE = 0.01
"""Share of a layer's attention (`state_share`, `memory_share`) below which a memory is unused."""
SHARE = re.compile(r"train/(.*\b(state|memory)_share)")
SLOW = 5.0
"""A step is slow if it takes so many times the median of earlier steps."""
USUAL = 3
"""Reports before a median is used."""
TIMEOUT = 300.0
"""Least seconds without a step until a run counts as stalled."""


class Alerts:
    def __init__(self, warn: Callable[[str], None] = logging.warning):
        self._warn = warn
        self._seconds: list[float] = []
        self._raised: set[str] = set()

    def look(self, step: int, scalars: Mapping[str, float | str]) -> dict[str, float]:
        """Returns a report's alerts, `alert/NAME` to 1; warns of new ones."""
        alerts = {**self._not_finite(scalars), **self._slow(scalars), **self._dead(scalars)}
        for name, sentence in alerts.items():
            if name not in self._raised:
                self._warn(f"Step {step:,}: {sentence}")
        self._raised = set(alerts)
        return dict.fromkeys(sorted({name.partition(" ")[0] for name in alerts}), 1.0)

    def _not_finite(self, scalars):
        skipped = scalars.get("train/skipped_steps", 0)
        bad = [n for n, x in scalars.items() if isinstance(x, float) and not math.isfinite(x)]
        if skipped:
            return {
                "alert/not_finite": f"{skipped:.0f} updates since the last report were skipped, as "
                "loss, gradient or update were not finite: lower the learning rate if more follow."
            }
        return {"alert/not_finite": f"{', '.join(bad[:3])} is not finite."} if bad else {}

    def _slow(self, scalars):
        seconds = scalars.get("perf/step_seconds")
        if seconds is None:
            return {}
        known = self._seconds[-50:]
        if len(known) >= USUAL and seconds > SLOW * (usual := statistics.median(known)):
            return {
                "alert/stall": f"a step took {seconds:.3g} s, and {usual:.3g} s before "
                f"(waiting for data: {scalars.get('perf/data_wait', 0):.0%} of the time)."
            }
        self._seconds = [*known, seconds]
        return {}

    def _dead(self, scalars):
        shares = {
            match[1]: value
            for name, value in scalars.items()
            if (match := SHARE.fullmatch(name)) and value < DEAD_SHARE
        }
        return {
            f"alert/dead_state {name}": f"{name} is {share:.2g}, below {DEAD_SHARE}: the layer "
            "hardly reads its memory (docs/training.md; brt.evaluate --study=memory_use)."
            for name, share in shares.items()
        }


class StallWatch:
    """Warns once, from a thread, when a run stalls."""

    def __init__(self, warn: Callable[[str], None] = logging.warning, least: float = TIMEOUT):
        self._warn = warn
        self._least = least
        self._longest = 0.0
        self._last: float | None = None
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def step_done(self) -> None:
        """Notes that a step is done; the first one, which is compiled, is not timed."""
        now = time.monotonic()
        if self._thread is None:
            self._thread = threading.Thread(target=self._look, daemon=True)
            self._thread.start()
        if self._last is not None:
            self._longest = max(self._longest, now - self._last)
        self._last = now

    def pause(self) -> None:
        self._last = None

    def close(self) -> None:
        self._closed.set()
        if self._thread is not None:
            self._thread.join()

    def _look(self):
        warned = None
        while not self._closed.wait(self._least / 20):
            last = self._last
            limit = max(self._least, SLOW * self._longest)
            if last is not None and last != warned and time.monotonic() - last > limit:
                warned = last
                self._warn(
                    f"No step has ended for {time.monotonic() - last:.0f} s: a device, another "
                    "process or the data may have stopped."
                )
