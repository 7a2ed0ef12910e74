"""A run with a damaged checkpoint resumes from an older one, and prints sentences alone."""

import re
import shutil

import pytest
from checkpoints import DAMAGES
from marking import slow
from tiny_run import build, start, train_here, write_config


@pytest.fixture(scope="module")
def run(folder):
    """A config, and a run with checkpoints of steps 2, 4 and 6."""
    lines = "CheckpointPolicy.every = 2", "CheckpointPolicy.keep_last = 3"
    tiny = build(write_config(folder, *lines))
    train_here(tiny, folder / "run")
    return tiny.path, folder / "run"


@pytest.mark.parametrize("damage", [slow(name, when="several" not in name) for name in DAMAGES])
def test_of_a_damaged_checkpoint_a_sentence_is_printed_alone(run, tmp_path, damage):
    path, whole = run
    folder = shutil.copytree(whole, tmp_path / "run")
    DAMAGES[damage](folder / "checkpoints" / "6")
    process = start("brt.train", f"--gin_file={path}", f"--workdir={folder}")
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert f"Resuming in {folder} from step 4" in out
    about = [line for line in err.splitlines() if "Checkpoint 6" in line]
    assert len(about) == 2  # it was skipped, and moved
    for text in (out, err):
        assert not re.search(r"Traceback|Exception|\.cc:|/orbax/|/asyncio/|never retrieved", text)
