"""Eight devices on one machine, so that sharding is tested everywhere; and quick compilation,
because the models here are tiny and run once."""

import os
import time
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Every compiled program, however small, is cached for other tests and processes.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", os.path.expanduser("~/.cache/brt/tests"))
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES"] = "none"

import functools
import gc

import gin
import jax
import numpy as np
import pytest
from stores import FIRST, make_store
from tiny_models import QUICK

# XLA runs eight devices in a pool of eight threads, or of NPROC. A device may wait in several
# independent collectives at once, a thread each: eight threads can all wait for a ninth.
os.environ["NPROC"] = "128"
# XLA reads its flags when JAX first looks for devices, not when it is imported.
options = {"xla_force_host_platform_device_count": 8, **QUICK}
flags = [f"--{name}={str(value).lower()}" for name, value in options.items()]
os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *flags])

# Programs are many small objects: looking through them as often as usual takes a tenth of the time.
gc.set_threshold(100_000, 20, 20)

KEPT_SECONDS = 14 * 24 * 3600


def pytest_sessionstart(session):
    folder = os.environ["JAX_COMPILATION_CACHE_DIR"]
    if folder and "PYTEST_XDIST_WORKER" not in os.environ:
        for entry in Path(folder).glob("*-cache"):
            if time.time() - entry.stat().st_mtime > KEPT_SECONDS:
                entry.unlink()


def pytest_collection_finish(session):
    # What was imported stays: collections need not look through it, which takes half a second.
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def nothing_bound():
    """What one module's tests bound must not configure the models of the next."""
    gin.clear_config()


@pytest.fixture(autouse=True, scope="module")
def nothing_compiled():
    """Programs of one module are of no use to the next, and a heap full of them slows it down."""
    yield
    jax.clear_caches()


@pytest.fixture
def collect_garbage():
    """For tests in which a restore or write fails: coroutines that it left complain here."""
    gc.freeze()  # Only what the test made is collected: a process's whole heap takes a second.
    yield
    gc.collect()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An empty folder that the tests of a module share."""
    return tmp_path_factory.mktemp("module")


@pytest.fixture(scope="module")
def tiny(request, folder):
    """The tiny experiment with the LINES of a module in its config, bound with its BINDINGS."""
    from tiny_run import build, write_config

    lines, bindings = (getattr(request.module, name, ()) for name in ("LINES", "BINDINGS"))
    return build(write_config(folder, *lines), *bindings)


@pytest.fixture(scope="module")
def straight(tiny, folder):
    """The run of the tiny experiment that nothing ever happened to."""
    from tiny_run import train_here

    return train_here(tiny, folder / "straight")


@pytest.fixture(scope="session")
def store_of(tmp_path_factory):
    """Makes a small store of documents with the given lengths, or gives the one made before."""
    made = {}

    def make(lengths, weighted=False, first=FIRST, labelled=False):
        key = tuple(lengths), weighted, first, labelled
        if key not in made:
            folder = tmp_path_factory.mktemp("stores") / "train"
            made[key] = make_store(folder, *key)
        return made[key]

    return make


@pytest.fixture
def check(monkeypatch, tmp_path):
    """Runs scripts/check_recording.py on recordings, files or dictionaries; its exit status."""
    import check_recording as script

    compare, compared = script.check, []

    def counted(*arguments):
        compared.append(compare(*arguments))
        return compared[-1]

    monkeypatch.setattr(script, "check", counted)
    monkeypatch.setattr(jax, "jit", functools.partial(jax.jit, compiler_options=QUICK))
    precision = jax.config.jax_default_matmul_precision

    def run(*recordings, name=""):
        files = []
        for number, arrays in enumerate(recordings):
            files.append(arrays)
            if isinstance(arrays, dict):
                files[-1] = tmp_path / f"{number}{name}.npz"
                np.savez(files[-1], **arrays)
        compared.clear()
        status = script.main([str(file) for file in files])
        assert len(compared) == len(files), "a recording could not be read"
        return status

    yield run
    jax.config.update("jax_default_matmul_precision", precision)
