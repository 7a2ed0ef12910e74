"""SIGTERM ends a preparation with a sentence, and the next one makes the rest."""

import signal
import time

import pytest
from marking import slow
from tiny_run import start, write_config

from brt.data.stores.token_store import TokenStore

BYTES = 150_000_000


@pytest.mark.parametrize("module", ["brt.prepare", slow("brt.train")])
def test_an_ended_preparation_leaves_nothing_finished(tmp_path, module):
    path = write_config(tmp_path, "Trainer.steps = 1")
    with open(tmp_path / "texts" / "train" / "long.txt", "wb") as file:
        for _ in range(BYTES // 1_000_000):
            file.write(b"long text\n" * 100_000)
    store = tmp_path / "stores" / "train"
    process = start(module, f"--gin_file={path}", f"--workdir={tmp_path / 'run'}")
    try:
        deadline = time.monotonic() + 100
        while not store.parent.is_dir() and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 143, said
    assert "Traceback" not in said
    with pytest.raises(FileNotFoundError):
        TokenStore(str(store))
    (tmp_path / "texts" / "train" / "long.txt").unlink()
    process = start(module, f"--gin_file={path}", f"--workdir={tmp_path / 'run'}")
    _, said = process.communicate(timeout=200)
    assert process.returncode == 0, said
    assert TokenStore(str(store)).num_documents == 9
