"""What one command has compiled, the next finds; damaged entries are compiled again."""

import os
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from apart import python
from jax.experimental.compilation_cache import compilation_cache as cache_of_jax
from tiny_run import PLAIN, quick_environment, write_config

from brt.host import compilation_cache

SETTINGS = (
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_enable_xla_caches",
)


@pytest.fixture(autouse=True)
def settings_afterwards():
    before = {name: getattr(jax.config, name) for name in SETTINGS}
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    cache_of_jax.reset_cache()


def entries(folder):
    return sorted(path.name for path in folder.iterdir() if path.is_file())


def compiled_sine(x):
    """Compiles one program: the argument is NumPy's."""
    jax.clear_caches()
    return float(jax.jit(jnp.sin)(np.float32(x)))


@pytest.mark.parametrize("kept", [0, 1, 0.5, -1])
def test_a_truncated_entry_is_compiled_again(tmp_path, monkeypatch, kept):
    """kept: bytes, or a share of the entry."""
    monkeypatch.setattr(compilation_cache, "LEAST_SECONDS", 0.0)
    compilation_cache.use(str(tmp_path))
    compiled_sine(1.0)
    (entry,) = tmp_path.iterdir()
    content = entry.read_bytes()
    entry.write_bytes(content[: kept if isinstance(kept, int) else int(kept * len(content))])
    with pytest.warns(UserWarning, match="Error reading persistent compilation cache"):
        assert compiled_sine(1.0) == pytest.approx(0.841471)


def test_the_oldest_entries_make_room_and_nothing_else_does(tmp_path, monkeypatch):
    monkeypatch.setattr(compilation_cache, "MOST_BYTES", 250)
    names = [f"jit_{letter}-{'0' * 64}-cache" for letter in "abc"]
    for age, name in enumerate(reversed(names)):
        (tmp_path / name).write_bytes(b"x" * 100)
        os.utime(tmp_path / name, (time.time() - 100 * age,) * 2)
    (tmp_path / "thesis-cache").write_bytes(b"x" * 1000)
    os.utime(tmp_path / "thesis-cache", (0, 0))
    (tmp_path / "brt").mkdir()
    compilation_cache.use(str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["brt", *names[1:], "thesis-cache"]


def test_a_folder_that_cannot_be_used_is_only_reported(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    before = jax.config.jax_compilation_cache_dir
    compilation_cache.use(str(tmp_path / "file" / "cache"))
    assert "--compilation_cache" in caplog.text
    assert jax.config.jax_compilation_cache_dir == before


def test_jax_s_own_variable_and_an_empty_folder_leave_jax_alone(tmp_path, monkeypatch):
    before = jax.config.jax_compilation_cache_dir
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "")
    compilation_cache.use()
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    compilation_cache.use("")
    assert jax.config.jax_compilation_cache_dir == before and not list(tmp_path.iterdir())
    compilation_cache.use()
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "brt" / "compiled")


def test_a_run_that_is_started_again_compiles_no_step(tmp_path, monkeypatch):
    """The same command with another run folder, as a process of its own.

    A third one finds every entry cut short, as by a kill.
    """
    path = write_config(tmp_path, *PLAIN)
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    environment = quick_environment() | {"XDG_CACHE_HOME": str(tmp_path / "caches")}
    compiled = tmp_path / "caches" / "brt" / "compiled"
    found, kept = [], []
    for number in range(3):
        if number == 2:
            for entry in compiled.iterdir():
                entry.write_bytes(entry.read_bytes()[:100])
        environment["PYTHONWARNINGS"] = "error" if number < 2 else "ignore"
        flags = f"--gin_file={path}", f"--workdir={tmp_path}/{number}"
        said = python(COUNTED, *flags, **environment)
        kept.append(entries(compiled))
        found.append(int(said.splitlines()[-1]))
    assert "jit_train_step" in {name.split("-")[0] for name in kept[0]}
    assert found == [0, len(kept[0]), 0] and set(kept[0]) <= set(kept[1])


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
