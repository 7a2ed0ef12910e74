"""JAX's cache of compiled programs, in a folder that all runs share.

A kill while JAX writes an entry leaves it damaged: JAX then warns at each start and compiles that
program again, until the entry is removed.
"""

import contextlib
import os
from pathlib import Path

import jax
from absl import logging
from jax.experimental.compilation_cache import compilation_cache as cache_of_jax

from brt.storage.shipped import user_cache

MOST_BYTES = 4 * 2**30
LEAST_SECONDS = 0.2
"""Programs that compile faster are not kept."""
ENTRIES = f"jit_*-{'[0-9a-f]' * 64}-cache"


def use(folder: str | None = None) -> None:
    """Caches compiled programs from now on; warns of an unusable folder.

    folder: "" for none; None for ~/.cache/brt/compiled, or JAX's own JAX_COMPILATION_CACHE_DIR.
    """
    if folder is None:
        if "JAX_COMPILATION_CACHE_DIR" in os.environ:
            return
        folder = str(user_cache("compiled"))
    if not folder:
        return
    path = Path(folder).expanduser()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        logging.warning(
            "Programs are compiled again at every start (%s): name another folder with "
            "--compilation_cache.",
            error,
        )
        return
    with contextlib.suppress(OSError):  # another process makes room, too
        make_room(path)
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", LEAST_SECONDS)
    # XLA's own caches are named by their folder, which would be part of an entry's key.
    jax.config.update("jax_persistent_cache_enable_xla_caches", "none")
    cache_of_jax.reset_cache()


def make_room(folder: Path) -> None:
    """Removes the oldest entries beyond `MOST_BYTES`."""
    size = 0
    for entry in sorted(folder.glob(ENTRIES), key=os.path.getmtime, reverse=True):
        size += entry.stat().st_size
        if size > MOST_BYTES:
            entry.unlink(missing_ok=True)
