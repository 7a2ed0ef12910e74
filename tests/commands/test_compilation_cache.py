"""What one command has compiled, the next finds; and nothing but its own is touched."""

import os
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_run import PLAIN, quick_environment, write_config

from brt.host import compilation_cache
from brt.host.compilation_cache import CompilationCache

NAME = "jit_f-" + "0" * 64 + "-cache"


@pytest.fixture(autouse=True)
def ended():
    yield
    compilation_cache.end()


def entries(folder):
    return sorted(path.name for path in folder.iterdir() if path.is_file())


def compiled_sine(x):
    """Compiles a program, however short that takes; the only one: the argument is NumPy's."""
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    return float(jax.jit(jnp.sin)(np.float32(x)))


@pytest.fixture
def hits():
    """Counts programs that were read from the cache."""
    found = []

    def listen(event, **_):
        if event == "/jax/compilation_cache/cache_hits":
            found.append(event)

    jax.monitoring.register_event_listener(listen)
    yield found
    jax.monitoring.unregister_event_listener(listen)


def test_what_was_compiled_is_found_after_it_is_published(tmp_path, hits):
    first = CompilationCache(tmp_path)
    compiled_sine(1.0)
    assert not entries(tmp_path), "an entry appeared before it was whole"
    first.close()
    (entry,) = entries(tmp_path)
    assert entry.endswith("-cache") and [path.name for path in tmp_path.iterdir()] == [entry]
    jax.clear_caches()
    second = CompilationCache(tmp_path)
    assert not hits
    assert compiled_sine(1.0) == pytest.approx(0.841471)
    assert len(hits) == 1
    second.close()
    assert entries(tmp_path) == [entry]


def test_two_processes_see_neither_s_half_written_entries(tmp_path):
    one, other = CompilationCache(tmp_path), CompilationCache(tmp_path)
    (one.own / NAME).write_bytes(b"half")
    assert not entries(tmp_path) and not entries(other.own)
    other.close()
    (one.own / NAME).write_bytes(b"whole")
    one.publish()
    assert (tmp_path / NAME).read_bytes() == b"whole"
    third = CompilationCache(tmp_path)
    assert (third.own / NAME).read_bytes() == b"whole"
    third.close()
    one.close()


def test_a_folder_that_another_process_removes_is_passed_over(tmp_path):
    # As it looks if it is removed after it was listed.
    (tmp_path / "brt-process-ended").symlink_to(tmp_path / "removed")
    cache = CompilationCache(tmp_path)
    assert cache.own.is_dir()
    cache.close()


def test_file_systems_without_links_get_copies(tmp_path, monkeypatch):
    def refused(*_):
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", refused)
    cache = CompilationCache(tmp_path)
    (cache.own / NAME).write_bytes(b"whole")
    cache.close()
    assert [path.name for path in tmp_path.iterdir()] == [NAME]
    assert (tmp_path / NAME).read_bytes() == b"whole"


def test_the_oldest_entries_make_room_and_nothing_else_does(tmp_path, monkeypatch):
    monkeypatch.setattr(compilation_cache, "MOST_BYTES", 250)
    names = [f"jit_{letter}-{'0' * 64}-cache" for letter in "abc"]
    for age, name in enumerate(reversed(names)):
        (tmp_path / name).write_bytes(b"x" * 100)
        os.utime(tmp_path / name, (time.time() - 100 * age,) * 2)
    (tmp_path / "thesis-cache").write_bytes(b"x" * 1000)
    os.utime(tmp_path / "thesis-cache", (0, 0))
    (tmp_path / "brt").mkdir()
    CompilationCache(tmp_path).close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["brt", *names[1:], "thesis-cache"]


def test_a_folder_that_cannot_be_used_is_only_reported(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    before = jax.config.jax_compilation_cache_dir
    compilation_cache.begin(str(tmp_path / "file" / "cache"))
    assert "--compilation_cache" in caplog.text
    assert jax.config.jax_compilation_cache_dir == before
    compilation_cache.publish()


def test_jax_s_own_variable_and_an_empty_folder_leave_jax_alone(tmp_path, monkeypatch):
    before = jax.config.jax_compilation_cache_dir
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "")
    compilation_cache.begin()
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    compilation_cache.begin("")
    assert jax.config.jax_compilation_cache_dir == before and not list(tmp_path.iterdir())
    compilation_cache.begin()
    assert jax.config.jax_compilation_cache_dir.startswith(str(tmp_path / "brt" / "compiled"))
    compilation_cache.end()
    assert jax.config.jax_compilation_cache_dir == before


def test_a_run_that_is_started_again_compiles_no_step(tmp_path):
    """The same command with another run folder, as a process of its own."""
    path = write_config(tmp_path, *PLAIN, without=("RecurrentCell",))
    environment = quick_environment() | {"XDG_CACHE_HOME": str(tmp_path / "caches")}
    del environment["JAX_COMPILATION_CACHE_DIR"]
    found = []
    kept = []
    for number in range(2):
        done = subprocess.run(
            [sys.executable, "-c", COUNTED, f"--gin_file={path}", f"--workdir={tmp_path}/{number}"],
            env=environment | {"PYTHONWARNINGS": "error"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        kept.append(entries(tmp_path / "caches" / "brt" / "compiled"))
        found.append(int(done.stdout.splitlines()[-1]))
    assert "jit_train_step" in {name.split("-")[0] for name in kept[0]}
    assert found == [0, len(kept[0])] and set(kept[0]) <= set(kept[1])


COUNTED = """
import atexit, jax
hits = []
jax.monitoring.register_event_listener(
    lambda event, **_: hits.append(event) if event.endswith("/cache_hits") else None
)
atexit.register(lambda: print(len(hits)))
from brt import command_line, train
from brt.host import compilation_cache
compilation_cache.LEAST_SECONDS = 0.0
command_line.run(train.main)
"""
