"""Processes restore together: one replica is read, and all have what was saved, or an older one."""

import json
import socket

import pytest
from paths import TESTS
from tiny_run import ended, start

DIVIDED = 2 * 4 * 64 * 4096
"""Bytes of the largest arrays, parameters and momentum, before compression."""


@pytest.mark.slow
def test_two_processes_restore_bit_for_bit_what_one_reads(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(TESTS / "support"))
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "2")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    program = "tests.support.several_restores"
    started = [start(program, number, port, tmp_path) for number in range(2)]
    statuses, outputs = ended(started)
    assert statuses == [0, 0], outputs
    lines = [
        [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        for output in outputs
    ]
    for first, second in zip(*lines, strict=True):
        assert first["differing"] == second["differing"] == []
        assert first["mesh"] == second["mesh"] and first["step"] == second["step"]
    assert [line["step"] for line in lines[0]] == [5, 3] * 3
    for first, second in zip(*(found[::2] for found in lines), strict=True):
        data = first["mesh"][0]
        assert first["read"] > DIVIDED / (2 if data == 1 else 1) * 0.8
        # Without replicas in other processes, each reads its part.
        assert second["read"] < 100_000 if data > 1 else second["read"] > DIVIDED / 2 * 0.8
