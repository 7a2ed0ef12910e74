"""Checkpoints of a small state with every kind of array a run carries, and ways to damage them."""

import functools
import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from tiny_run import mesh_of

from brt.models.block_recurrent.cell import StateCache
from brt.models.block_recurrent.external_memory import RingCache
from brt.models.caches import LayerCache, WindowCache
from brt.training.checkpoints.checkpoint import CheckpointPolicy, Checkpoints
from brt.training.sharding import shardings
from brt.training.train_step import TrainState


def make_state(step=3, seed=0, width=16):
    """A train state of every kind of array a run carries."""
    rng = np.random.default_rng([seed, step])

    def draw(*shape, dtype=jnp.float32):
        return jnp.asarray(rng.normal(size=shape), dtype)

    params = {
        "embedding_VD": draw(64, width),
        "begin_D": draw(width).at[0].set(-0.0).at[1].set(jnp.nan),
        "layers": {0: {"queries_DA": draw(width, 8)}},
    }

    def pair(length):
        return (draw(8, length, 2, 3, dtype=jnp.bfloat16) for _ in range(2))

    states = StateCache(draw(8, 5, width))
    ring = RingCache(*pair(12), jnp.arange(8, dtype=jnp.int32) * 4)
    caches = tuple(LayerCache(WindowCache(*pair(4)), (memory,)) for memory in (states, ring))
    caches = *caches, draw(8) > 0
    optimizer = optax.sgd(0.1, momentum=0.9).init(params)
    optimizer = jax.tree.map(lambda x: (x + draw(*x.shape)).astype(x.dtype), optimizer)
    return TrainState(jnp.int32(step), params, optimizer, caches)


def placed(state, mesh):
    return jax.device_put(state, shardings(state, mesh))


def abstract(state, mesh=None):
    mesh = mesh or mesh_of(1, 1)
    return jax.tree.map(
        lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
        state,
        shardings(state, mesh),
    )


@contextmanager
def opened(folder, **policy):
    checkpoints = Checkpoints(str(folder), CheckpointPolicy(**policy))
    yield checkpoints
    checkpoints.close()


def saved(folder, *steps, **policy):
    """Saves states of these steps; returns the steps that the policy keeps."""
    if not policy and not list(folder.glob("*")):
        template, kept = _template(steps)
        shutil.copytree(template.name, folder, dirs_exist_ok=True)
        return kept
    return _save(folder, steps, **policy)


@functools.cache
def _template(steps):
    folder = tempfile.TemporaryDirectory()
    return folder, _save(folder.name, steps)


def _save(folder, steps, **policy):
    with opened(folder, **policy) as checkpoints:
        for step in steps:
            checkpoints.save(make_state(step), {"step": step})
        checkpoints.wait()
        return checkpoints.steps()


def restored(folder, state=None, **options):
    with opened(folder) as checkpoints:
        return checkpoints.restore_latest(abstract(state or make_state()), **options)


def array_file(folder, part):
    """The largest file of a part: its array data."""
    files = [path for path in (folder / part).rglob("*") if path.is_file()]
    return max(files, key=lambda path: path.stat().st_size)


def flip(path: Path):
    """Spoils nine bytes, since any one of them may belong to an array that is no longer used."""
    data = bytearray(path.read_bytes())
    for tenth in range(1, 10):
        data[len(data) * tenth // 10] ^= 0x10
    path.write_bytes(data)


def arrays_removed(folder: Path):
    """Removes files of several arrays at once, so that several reads of a restore fail."""
    for part in ("params", "optimizer", "caches"):
        array_file(folder, f"{part}/ocdbt.process_0").unlink()


DAMAGES = {
    "flipped bytes": lambda folder: flip(array_file(folder, "params")),
    "flipped bytes of the optimizer": lambda folder: flip(array_file(folder, "optimizer")),
    "flipped bytes of the caches": lambda folder: flip(array_file(folder, "caches")),
    "truncated file": lambda folder: os.truncate(array_file(folder, "params"), 100),
    "emptied file": lambda folder: os.truncate(array_file(folder, "caches"), 0),
    "deleted file": lambda folder: array_file(folder, "optimizer").unlink(),
    "deleted files of several arrays": arrays_removed,
    "deleted part": lambda folder: shutil.rmtree(folder / "caches"),
    "deleted record": lambda folder: shutil.rmtree(folder / "record"),
    "flipped record": lambda folder: flip(array_file(folder, "record")),
    "emptied folder": lambda folder: [shutil.rmtree(folder), folder.mkdir()],
}
