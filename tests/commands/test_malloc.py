"""Settings of malloc at start-up: scripts make them; training on a CPU says if they are missing."""

import platform

import jax
import pytest
from apart import run
from tiny_run import command, write_config

from brt import command_line, train

SET = (
    "glibc.malloc.hugetlb=1:glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=8589934592"
    ":glibc.malloc.arena_max=2"
)
MISSING = "malloc.sh before"


def tunables(**environment):
    """The settings that scripts which source scripts/malloc.sh pass to their commands."""
    line = 'source scripts/malloc.sh; env | grep "^GLIBC_TUNABLES=" || true'
    said = run("bash", "-euo", "pipefail", "-c", line, **environment)
    return said.strip().removeprefix("GLIBC_TUNABLES=")


@pytest.mark.skipif(platform.system() != "Linux", reason="glibc's settings are for Linux")
def test_scripts_give_the_settings_unless_there_are_others(monkeypatch):
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    assert tunables() == SET
    assert tunables(GLIBC_TUNABLES="glibc.malloc.arena_max=1") == "glibc.malloc.arena_max=1"


@pytest.fixture
def on_glibc(monkeypatch):
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.36"))
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    monkeypatch.delenv("JPY_PARENT_PID", raising=False)


@pytest.mark.slow
def test_training_on_a_cpu_says_once_that_they_are_missing(on_glibc, monkeypatch, tmp_path, capsys):
    flags = [f"--gin_file={write_config(tmp_path)}", f"--workdir={tmp_path / 'run'}"]
    assert not command(monkeypatch, train, *flags, "--gin.Trainer.steps=2")
    assert capsys.readouterr().err.count(MISSING) == 1
    assert not command(monkeypatch, train, *flags, "--gin.Trainer.steps=2")
    assert MISSING not in capsys.readouterr().err  # nothing is left to train
    monkeypatch.setenv("GLIBC_TUNABLES", SET)
    assert not command(monkeypatch, train, *flags, "--gin.Trainer.steps=3")
    assert MISSING not in capsys.readouterr().err


def test_settings_are_not_missed_elsewhere(on_glibc, monkeypatch):
    assert command_line.malloc_remedy()
    with monkeypatch.context() as patch:
        patch.setattr(jax, "default_backend", lambda: "gpu")
        assert not command_line.malloc_remedy()
    with monkeypatch.context() as patch:
        patch.setenv("JPY_PARENT_PID", "1")
        assert not command_line.malloc_remedy()
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    assert not command_line.malloc_remedy()
