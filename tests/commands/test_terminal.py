"""Texts of others on a terminal: controls appear as escapes; pipes get them as they are."""

import io
import sys

import pytest
from absl import logging
from terminals import terminal
from test_generate_command import run  # noqa: F401
from tiny_run import command

from brt import generate
from brt.host.terminal import Terminal, guard_streams, plain, shown

COMMANDS = {
    "window title": "\x1b]0;title\x07",
    "clear screen": "\x1b[2J",
    "clipboard": "\x1b]52;c;cm0gLXJm\x07",
    "C1": "\x9b2J",
    "delete": "a\x7f",
    "backspace": "a\bb",
    "line overwritten": "a\rb",
    "reversed": "\u202ea",
    "isolated": "\u2066a\u2069",
    "NUL": "a\0b",
}


@pytest.fixture(autouse=True)
def logs(monkeypatch):
    """Restores what a command sets on a terminal, for good."""
    handler = logging.get_absl_handler().python_handler
    for name in ("stream", "formatter"):
        monkeypatch.setattr(handler, name, getattr(handler, name))


@pytest.mark.parametrize("kind", COMMANDS)
def test_controls_are_shown_on_a_terminal(kind):
    text = f"é\t{COMMANDS[kind]}ü\n"
    with terminal() as screen:
        guard_streams()
        for stream in (sys.stdout, sys.stderr):
            print(text, end="", file=stream, flush=True)
            seen = screen()
            assert seen == shown(text) != text
            assert all(c.isprintable() or c in "\n\t" for c in seen)


def test_controls_that_arrive_in_pieces_are_shown():
    with terminal() as screen:
        guard_streams()
        for piece in ("\x1b", "]0;", "title", "\x07", "\n"):
            print(piece, end="", flush=True)
        assert screen() == "\\x1b]0;title\\x07\n"


def test_what_brt_draws_reaches_the_terminal():
    with terminal() as screen:
        guard_streams()
        plain(sys.stdout).write("\x1b[2m")
        assert screen() == "\x1b[2m"


def test_a_pipe_gets_every_byte(monkeypatch):
    monkeypatch.setattr(sys, "stdout", pipe := io.StringIO())
    guard_streams()
    print("".join(COMMANDS.values()), end="")
    assert pipe.getvalue() == "".join(COMMANDS.values())


def test_a_guarded_stream_is_not_guarded_again():
    with terminal():
        for _ in range(2):
            guard_streams()
        assert not isinstance(plain(sys.stdout), Terminal)


@pytest.mark.parametrize("samples", [1, 2])
def test_generation_shows_the_controls_of_a_prompt(run, monkeypatch, samples):  # noqa: F811
    flags = "--prompt=the\x1b]0;title\x07\nend", "--max_tokens=3", f"--samples={samples}"
    with terminal() as screen:
        assert not command(monkeypatch, generate, f"--workdir={run}", *flags)
        seen = screen()
    assert "the\\x1b]0;title\\x07\nend" in seen
    assert "\x07" not in seen and "\x1b]" not in seen


def test_an_error_shows_the_controls_of_a_name(monkeypatch, tmp_path):
    with terminal() as screen:
        folder = tmp_path / "a\x1b[2Jb"
        assert command(monkeypatch, generate, f"--workdir={folder}", "--prompt=a") == 1
        assert "a\\x1b[2Jb" in screen()
