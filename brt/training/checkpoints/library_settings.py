"""Settings of the libraries below Orbax that none of its options reaches."""

import importlib
import os
from typing import Any

COUNTERS = "orbax.checkpoint._src.serialization.tensorstore_utils"
"""Where Orbax reads the counters of TensorStore."""


def reach_buckets_without_tensorflow() -> None:
    """Has etils, through which Orbax reaches buckets, use fsspec, as the rest of brt does.

    Where TensorFlow is installed it would import that, for which training has no use.
    """
    os.environ.setdefault("EPATH_USE_TF", "false")
    from etils.epath import gpath

    asked = getattr(gpath, "_is_tf_installed", None)  # which may have kept an earlier answer
    if asked is not None and hasattr(asked, "cache_clear"):
        asked.cache_clear()


def leave_counters_unread() -> None:
    """Has Orbax not read TensorStore's counters of bytes, for the whole process.

    They are for log lines that brt does not show. TensorStore hands them over as JSON, whose Python
    objects it never frees: some 0.1 MB a checkpoint (docs/benchmarks/robustness.md). Does nothing
    where Orbax has no such reading.
    """
    try:
        module: Any = importlib.import_module(COUNTERS)
    except ImportError:
        return
    if hasattr(module, "get_tensorstore_raw_bytes"):
        module.get_tensorstore_raw_bytes = _no_bytes


def _no_bytes(direction=None) -> int:
    return 0
