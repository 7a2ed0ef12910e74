"""Progress: a live bar on a terminal, few plain lines elsewhere."""

import sys

import pytest
from terminals import terminal

from brt.host import progress
from brt.host.progress import Progress, reported


@pytest.fixture
def clock(monkeypatch):
    """A clock that tests move."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    monkeypatch.setattr("tqdm.std.time", lambda: now[0])

    def wait(seconds):
        now[0] += seconds

    return wait


def lines(capsys):
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.splitlines()


def test_plain_lines_come_at_most_every_so_many_seconds(capsys, clock):
    shown = Progress("step", 1000)
    for done in range(1, 101):
        clock(1.0)
        shown.update(done)
    assert [line.split("  ")[0] for line in lines(capsys)] == [
        f"step {done}/1,000" for done in range(10, 101, 10)
    ]


def test_a_line_with_text_comes_at_once_and_restarts_the_wait(capsys, clock):
    shown = Progress("step", 10)
    clock(9.0)
    shown.update(1, "loss 5.0")
    clock(9.0)
    shown.update(2)
    clock(1.0)
    shown.update(3)
    assert [line.split("  ")[:2] for line in lines(capsys)] == [
        ["step 1/10", "loss 5.0"],
        ["step 3/10", "0:00:35 left"],
    ]


@pytest.mark.parametrize(
    ("first", "done", "total", "seconds", "text"),
    [
        (1, 11, 41, 10.0, "step 11/41  0:00:30 left"),
        (31, 41, 51, 10.0, "step 41/51  0:00:10 left"),  # what was done before is no speed
        (1, 2, 3602, 1.0, "step 2/3,602  1:00:00 left"),
        (1, 2, 100_001, 1.0, "step 2/100,001  27:46:39 left"),
        (1, 40, 40, 10.0, "step 40/40  0:00:00 left"),
        (1, 51, None, 20.0, "step 51  2.5/s"),
        (0, 0, 40, 10.0, "step 0/40"),
    ],
)
def test_a_plain_line_tells_what_is_done_and_what_is_left(
    capsys, clock, first, done, total, seconds, text
):
    shown = Progress("step", total, first - 1)
    clock(3600.0)  # of compiling
    shown.update(first, "")
    clock(seconds)
    shown.update(done, "")
    of = "" if total is None else f"/{total:,}"
    assert lines(capsys) == [f"step {first}{of}", text]


def test_a_stream_that_is_closed_or_gone_stops_nothing(monkeypatch):
    class Gone:
        """A terminal whose window was closed."""

        def write(self, text):
            raise OSError(5, "Input/output error")

        def flush(self):
            raise OSError(5, "Input/output error")

        def isatty(self):
            return self.on_terminal

        def fileno(self):
            raise OSError(25, "Inappropriate ioctl for device")

    terminal, pipe = Gone(), Gone()
    terminal.on_terminal, pipe.on_terminal = True, False
    for stream in (terminal, pipe, None):
        monkeypatch.setattr(sys, "stderr", stream)
        shown = Progress("step", 3)
        for done in (1, 2, 3):
            shown.update(done, "loss 1.0")
        shown.note("saved")
        shown.close()


def test_reported_passes_everything_on_and_counts_it(capsys, clock):
    def slow():
        for item in "abcd":
            clock(6.0)
            yield item

    assert list(reported(slow(), "documents", 4)) == list("abcd")
    assert [line.split("  ")[0] for line in lines(capsys)] == ["documents 2/4", "documents 4/4"]


def test_a_terminal_shows_one_live_bar_with_the_last_text():
    with terminal() as read:
        shown = Progress("step", 8, start=2)
        for done in range(3, 9):
            shown.update(done, f"loss {done / 2}")
        shown.note("eval: fine")
        shown.close()
        text = read()
    assert "8/8" in text and "100%" in text and "step" in text
    assert "loss 4.0" in text.rstrip().split("\r")[-1]
    assert text.count("\n") == 2  # the note's, and the one after the bar
    assert text.count("eval: fine") == 1


def test_short_work_shows_no_bar(clock):
    for seconds, shows in ((0.1, False), (2.0, True)):
        with terminal() as read:
            for _ in reported("abcd", "reading a store, files", 4, delay=3.0):
                clock(seconds)
            assert ("4/4" in read()) == shows
