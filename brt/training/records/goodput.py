"""Goodput: a run's time in training steps, and lost to each cause."""

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from brt.training.records.run_folder import read_metrics

LOST = ("start", "compile", "input", "evaluation", "saves", "repeated")
"""Causes; `repeated`: steps after the last save before a process was killed. Time between two
processes is not counted.
"""
ELAPSED = "perf/elapsed"
"""Seconds of a run until a report, of all its processes."""

_seconds: defaultdict[str, float] = defaultdict(float)
"""Of this process, by cause."""
_running: list[str] = []
_loaded = time.perf_counter()


@contextlib.contextmanager
def spent(cause: str) -> Iterator[None]:
    """Counts the time of a block for a cause of `LOST`, unless an outer block does."""
    begun = time.perf_counter()
    _running.append(cause)
    try:
        yield
    finally:
        _running.pop()
        if not _running:
            _seconds[cause] += time.perf_counter() - begun


class Goodput:
    """Time of a run, of all its processes.

    Args:
        record: of the checkpoint from which the run is resumed, with `totals` as "goodput".
        folder: the run's, whose last report tells how long the process after that save lived.
    """

    _is_first = True

    def __init__(self, record: Mapping[str, Any], folder: str):
        now = time.perf_counter()
        self._begun = _loaded if Goodput._is_first else now
        Goodput._is_first = False  # a later run of this process did not start with it
        self._before = dict(_seconds)
        self._steps = 0
        self._earlier = defaultdict(float, record.get("goodput") or {})
        self._earlier["start"] += now - self._begun
        if saved := self._earlier["elapsed"]:
            reports = [line.get(ELAPSED, 0.0) for line in read_metrics(folder, [])]
            repeated = max(*reports, saved, 0.0) - saved
            self._earlier["repeated"] += repeated
            self._earlier["elapsed"] += repeated
        self._lap = self.totals()

    def step(self) -> contextlib.AbstractContextManager:
        """Returns the context in which a step is started; the first is compiled there."""
        self._steps += 1
        return spent("compile") if self._steps == 1 else contextlib.nullcontext()

    def lap(self) -> tuple[float, float]:
        """Returns seconds of steps since the last lap, and the part that waited for data."""
        before, self._lap = self._lap, self.totals()
        passed = {name: total - before.get(name, 0.0) for name, total in self._lap.items()}
        waited = passed.get("input", 0.0)
        lost = sum(passed.get(name, 0.0) for name in LOST)
        return passed["elapsed"] - lost + waited, waited

    def totals(self) -> dict[str, float]:
        """Returns seconds by cause, and all, `elapsed`, for a checkpoint."""
        seconds = self._earlier.copy()
        for name in [*_seconds]:
            seconds[name] += _seconds[name] - self._before.get(name, 0.0)
        seconds["elapsed"] += time.perf_counter() - self._begun
        return {**seconds}

    def scalars(self) -> dict[str, float]:
        """Returns `ELAPSED` and its shares: `perf/goodput` of steps, and `perf/lost_CAUSE`."""
        seconds = self.totals()
        shares = {name: seconds.get(name, 0.0) / seconds["elapsed"] for name in LOST}
        lost = {f"perf/lost_{name}": share for name, share in shares.items()}
        return {"perf/goodput": 1 - sum(shares.values()), **lost, ELAPSED: seconds["elapsed"]}

    def sentence(self) -> str:
        scalars = self.scalars()
        lost = sorted(((scalars[f"perf/lost_{name}"], name) for name in LOST), reverse=True)
        text = ", ".join(f"{name} {share:.1%}" for share, name in lost if share >= 0.0005)
        return (
            f"Of {scalars[ELAPSED]:,.0f} s, {scalars['perf/goodput']:.1%} were steps; lost: {text}."
        )
