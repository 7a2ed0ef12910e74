"""Measures the memory that saving checkpoints leaves behind in a process.

    source scripts/malloc.sh
    python scripts/scale/many_checkpoints.py [--count 300] [--counters]

Prints resident memory, glibc's heaps and Python's blocks. With --counters Orbax reads TensorStore's
counters, as it does without brt.
"""

import argparse
import ctypes
import gc
import sys
import tempfile
from pathlib import Path

import jax.numpy as jnp

from brt.training.checkpoints import checkpoint
from brt.training.checkpoints.checkpoint import CheckpointPolicy, Checkpoints
from brt.training.train_step import TrainState

TENTHS = 10
MB = 2**20
HEAP_FIELDS = (
    "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks",
    "uordblks", "fordblks", "keepcost",
)  # fmt: skip


class Heaps(ctypes.Structure):
    """glibc's `mallinfo2`: `uordblks` bytes in use, `fordblks` free."""

    _fields_ = [(name, ctypes.c_size_t) for name in HEAP_FIELDS]


def heaps() -> Heaps | None:
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallinfo2"):
        return None
    library.mallinfo2.restype = Heaps
    return library.mallinfo2()


def resident() -> float:
    """Returns the resident memory of this process in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


def make_state(step: int) -> TrainState:
    """Returns a state of 41 small arrays."""
    params = {
        f"layer_{number}": {"matrix": jnp.full((32, 32), step), "bias": jnp.zeros(32)}
        for number in range(6)
    }
    caches = tuple(jnp.ones((8, 16, 32)) for _ in range(4))
    return TrainState(jnp.int32(step), params, {"mean": params, "square": params}, caches)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--counters", action="store_true")
    arguments = parser.parse_args()
    if arguments.counters:
        checkpoint.leave_counters_unread = lambda: None
    print("checkpoints  MB resident  MB in use  MB free  Python's blocks")
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = Checkpoints(folder, CheckpointPolicy(every=1))
        for step in range(1, arguments.count + 1):
            checkpoints.save(make_state(step), {})
            checkpoints.wait()
            if step % max(arguments.count // TENTHS, 1) == 0:
                gc.collect()
                found = heaps()
                used, free = (found.uordblks / MB, found.fordblks / MB) if found else (0, 0)
                print(
                    f"{step:>11,}  {resident():>11.1f}  {used:>9.1f}  {free:>7.1f}  "
                    f"{sys.getallocatedblocks():>15,}",
                    flush=True,
                )
        checkpoints.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
