"""Commands of brt as processes of their own, compiled quickly, and once."""

import os

from fabricated_runs import ROOT


def quick_environment(folder):
    """One device, little optimization, and what one process compiled is there for the next."""
    flags = os.environ["XLA_FLAGS"].replace("device_count=8", "device_count=1")
    return {
        **os.environ,
        "XLA_FLAGS": flags,
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
