"""A folder of compiled programs, so that the second start of a command compiles nothing.

JAX's compilation cache writes its entries in place: a process that is killed while it writes, or
read by another meanwhile, would leave or meet half an entry. Here each process has a folder of its
own, which begins with links to all entries of the shared one, and puts what it compiled into the
shared one by links too, which appear whole or not at all. Nothing is locked.
"""

import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import jax
from absl import logging
from jax.experimental.compilation_cache import compilation_cache as of_jax

SHORTEST = 0.2
"""Seconds of compiling below which a program is not kept."""
MOST_BYTES = 4 * 2**30
"""Of the shared folder; beyond it the oldest entries go."""
ABANDONED = 7 * 24 * 3600
"""Seconds after which a folder of a process is taken to be left by one that was killed."""
ENTRY = re.compile(r"jit_.*-[0-9a-f]{64}-cache")
"""Names that JAX gives its entries; nothing of another name is touched."""
PROCESS = "brt-process-"


def default_folder() -> str:
    """Returns the folder of this user's compiled programs."""
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return os.path.join(os.path.expanduser(caches), "brt", "compiled")


class CompilationCache:
    """The shared folder, and the folder of this process, which JAX reads and writes.

    Args:
        folder: of the shared entries; made if it is not there.

    Raises:
        OSError: the folder cannot be made or written.
    """

    def __init__(self, folder: str):
        self.shared = Path(folder).expanduser()
        self.shared.mkdir(parents=True, exist_ok=True)
        for left in self.shared.glob(f"{PROCESS}*"):
            if time.time() - left.stat().st_mtime > ABANDONED:
                shutil.rmtree(left, ignore_errors=True)
        self.own = Path(tempfile.mkdtemp(prefix=PROCESS, dir=self.shared))
        for entry in _entries(self.shared):
            _link(entry, self.own / entry.name)
        ours = {
            "jax_compilation_cache_dir": str(self.own),
            "jax_persistent_cache_min_compile_time_secs": SHORTEST,
            # XLA's own caches are named by their folder, which would be part of an entry's key.
            "jax_persistent_cache_enable_xla_caches": "none",
        }
        self._before = {name: getattr(jax.config, name) for name in ours}
        _configure(ours)

    def publish(self) -> None:
        """Puts what this process has compiled into the shared folder; when nothing is compiling."""
        try:
            for entry in _entries(self.own):
                _link(entry, self.shared / entry.name)
            size = 0
            newest_first = sorted(_entries(self.shared), key=os.path.getmtime, reverse=True)
            for entry in newest_first:
                size += entry.stat().st_size
                if size > MOST_BYTES:
                    entry.unlink(missing_ok=True)
        except OSError as error:
            logging.warning("What was compiled is not kept for the next start: %s.", error)

    def close(self) -> None:
        """Publishes, and removes the folder of this process."""
        self.publish()
        _configure(self._before)
        shutil.rmtree(self.own, ignore_errors=True)


def _configure(settings):
    for name, value in settings.items():
        jax.config.update(name, value)
    of_jax.reset_cache()


def _entries(folder: Path) -> Iterator[Path]:
    """Yields the entries of a folder, in no order."""
    return (path for path in list(folder.iterdir()) if ENTRY.fullmatch(path.name))


def _link(entry, name):
    """Gives an entry a second name, at which it appears whole; where there are no links, too."""
    try:
        os.link(entry, name)
    except FileExistsError:
        pass
    except FileNotFoundError:  # another process made room
        if not entry.exists():
            return
        raise
    except OSError:
        whole = name.with_name(f"{name.name}.{os.getpid()}")
        shutil.copyfile(entry, whole)
        os.replace(whole, name)


_in_use: list[CompilationCache] = []


def begin(folder: str | None = None) -> None:
    """Keeps what this process compiles, until `end`; a folder that cannot be used is said only.

    folder: "" for none; None for the default one, or what JAX_COMPILATION_CACHE_DIR says.
    """
    if folder is None:
        if "JAX_COMPILATION_CACHE_DIR" in os.environ:
            return
        folder = default_folder()
    if folder:
        try:
            _in_use.append(CompilationCache(folder))
        except OSError as error:
            logging.warning(
                "Programs are compiled anew at every start (%s): name another folder with "
                "--compilation_cache.",
                error,
            )


def publish() -> None:
    """Lets the next start find what has been compiled so far, should this process be killed."""
    for cache in _in_use:
        cache.publish()


def end() -> None:
    """Publishes, and leaves JAX's cache as it was before `begin`."""
    while _in_use:
        _in_use.pop().close()
