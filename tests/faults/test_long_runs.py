"""A long run takes no more memory and no more files than a short one."""

import gc
import os

import pytest
from gin_settings import bound
from tiny_run import PLAIN, build, records, train_here, write_config

EVALUATIONS = 500


@pytest.mark.slow
def test_500_evaluations_open_no_files_and_keep_little_memory(tmp_path):
    bindings = (
        *PLAIN,
        *bound("Trainer", steps=EVALUATIONS, log_every=10),
        *bound("CheckpointPolicy", every=25, keep_last=1),
        "Trainer.eval_every = 1",
    )
    tiny = build(write_config(tmp_path), *bindings)
    seen = []

    def look(step, state, batch):
        if step % 50 == 0:
            gc.collect()
            with open("/proc/self/statm") as statistics:
                pages = int(statistics.read().split()[1])
            seen.append((pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir("/proc/self/fd"))))
        return state, batch

    train_here(tiny, tmp_path / "run", hook=look)
    assert len(records(tmp_path / "run", "eval/")) == EVALUATIONS
    memory, files = zip(*seen[1:])
    assert max(memory) < 1.05 * memory[0], memory  # 1.027 when this was written
    # Where a look finds a checkpoint being written, its files are open too.
    assert min(files[len(files) // 2 :]) <= min(files[: len(files) // 2]), files
