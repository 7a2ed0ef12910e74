"""A shared folder of compiled programs, so that a second start compiles nothing.

JAX alone never replaces an entry that a killed process left damaged, and with a bound on the size
(`jax_compilation_cache_max_size`) stores nothing more once one of an entry's two files is missing.
Here each process has its own folder, and links exchange whole entries with the shared one.
"""

import contextlib
import os
import shutil
import tempfile
import time
from pathlib import Path

import jax
from absl import logging
from jax.experimental.compilation_cache import compilation_cache as cache_of_jax

from brt.storage.replaced_files import replace_file
from brt.storage.shipped import user_cache

MOST_BYTES = 4 * 2**30
LEAST_SECONDS = 0.2
"""Programs that compile faster are not kept."""
ABANDONED = 7 * 24 * 3600
"""Seconds until a process's folder counts as abandoned."""
ENTRIES = f"jit_*-{'[0-9a-f]' * 64}-cache"
PROCESS = "brt-process-"


class CompilationCache:
    """Sets up JAX's compilation cache with entries shared in `folder`; `close` undoes it."""

    def __init__(self, folder: str | os.PathLike):
        self.shared = Path(folder).expanduser()
        self.shared.mkdir(parents=True, exist_ok=True)
        for old in self.shared.glob(f"{PROCESS}*"):
            with contextlib.suppress(FileNotFoundError):  # its process ends
                if time.time() - old.stat().st_mtime > ABANDONED:
                    shutil.rmtree(old, ignore_errors=True)
        self.own = Path(tempfile.mkdtemp(prefix=PROCESS, dir=self.shared))
        _link_entries(self.shared, self.own)
        settings = {
            "jax_compilation_cache_dir": str(self.own),
            "jax_persistent_cache_min_compile_time_secs": LEAST_SECONDS,
            # XLA's own caches are named by their folder, which would be part of an entry's key.
            "jax_persistent_cache_enable_xla_caches": "none",
        }
        self._before = {name: getattr(jax.config, name) for name in settings}
        _configure(settings)

    def publish(self) -> None:
        """Copies this process's programs to the shared folder, while nothing compiles."""
        try:
            _link_entries(self.own, self.shared)
            size = 0
            for entry in sorted(self.shared.glob(ENTRIES), key=os.path.getmtime, reverse=True):
                size += entry.stat().st_size
                if size > MOST_BYTES:
                    entry.unlink(missing_ok=True)
        except OSError as error:
            logging.warning("Compiled programs are not kept for the next start: %s.", error)

    def close(self) -> None:
        self.publish()
        _configure(self._before)
        shutil.rmtree(self.own, ignore_errors=True)


def _configure(settings):
    for name, value in settings.items():
        jax.config.update(name, value)
    cache_of_jax.reset_cache()


def _link_entries(source, target):
    for entry in source.glob(ENTRIES):
        name = target / entry.name
        try:
            os.link(entry, name)
        except (FileExistsError, FileNotFoundError):  # another process wrote it, or made room
            pass
        except OSError:  # a file system without links
            replace_file(target, entry.name, entry.read_bytes())


_in_use: list[CompilationCache] = []


def begin(folder: str | None = None) -> None:
    """Caches compiled programs until `end`; warns of an unusable folder.

    folder: "" for none; None for ~/.cache/brt/compiled, or JAX's own JAX_COMPILATION_CACHE_DIR.
    """
    if folder is None:
        if "JAX_COMPILATION_CACHE_DIR" in os.environ:
            return
        folder = str(user_cache("compiled"))
    if folder:
        try:
            _in_use.append(CompilationCache(folder))
        except OSError as error:
            logging.warning(
                "Programs are compiled again at every start (%s): name another folder with "
                "--compilation_cache.",
                error,
            )


def publish() -> None:
    for cache in _in_use:
        cache.publish()


def end() -> None:
    while _in_use:
        _in_use.pop().close()
