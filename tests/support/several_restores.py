"""One of two processes, of two devices each, that save states and restore them; started by a test.

Arguments: the number of the process, a free port, a folder. Prints a JSON line for each mesh and
checkpoint: names of the shards that did not come back bit for bit, and the bytes read for the
parameters and the optimizer. Process 0 deletes a file of step 5 before the second restore.
"""

import json
import sys
from pathlib import Path

import jax
import numpy as np
from checkpoints import abstract, array_file, make_state, opened
from jax.experimental import multihost_utils

from brt.host import processes
from brt.training.sharding import make_mesh, shardings

MESHES = ((2, 2, 1), (4, 1, 1), (1, 4, 1))
PARTS = ("step", "params", "optimizer")


def state_of(step, mesh):
    state = make_state(step, width=4096)
    embedding = np.array(state.params["embedding_VD"])
    embedding.view(np.uint32)[:2, 0] = 0x80000000, 0x7FA00001  # -0.0, a signalling NaN
    state.params["embedding_VD"] = embedding
    return jax.tree.map(
        lambda x, sharding: jax.make_array_from_callback(
            x.shape, sharding, lambda index: np.asarray(x)[index]
        ),
        *(state, shardings(state, mesh)),
    )


def differing(found, expected):
    return [
        f"{jax.tree_util.keystr(path)} of device {one.device.id}"
        for (path, x), y in zip(
            jax.tree_util.tree_leaves_with_path(found), jax.tree.leaves(expected), strict=True
        )
        for one, other in zip(x.addressable_shards, y.addressable_shards, strict=True)
        if (one.device, one.index, np.asarray(one.data).tobytes())
        != (other.device, other.index, np.asarray(other.data).tobytes())
    ]


def bytes_read():
    """Bytes that this process has read from files so far, of the disk or of the memory."""
    lines = Path("/proc/self/io").read_text(encoding="utf-8").splitlines()
    return int(dict(line.split(": ") for line in lines)["rchar"])


def restore(checkpoints, states, mesh):
    before = bytes_read()
    checkpoints.restore_latest(abstract(states[5], mesh), PARTS)
    read = bytes_read() - before
    found, _ = checkpoints.restore_latest(abstract(states[5], mesh))
    step = int(found.step)
    line = {"step": step, "differing": differing(found, states[step]), "read": read}
    print(json.dumps(line | {"mesh": [*mesh.devices.shape]}))


def main(number, port, folder):
    processes.join(f"localhost:{port}", 2, int(number))
    for shape in MESHES:
        mesh = make_mesh(shape)
        states = {step: state_of(step, mesh) for step in (3, 5)}
        path = Path(folder) / "-".join(map(str, shape))
        with jax.set_mesh(mesh), opened(path) as checkpoints:
            for state in states.values():
                checkpoints.save(state, {})
            checkpoints.wait()
            restore(checkpoints, states, mesh)
            if number == "0":
                array_file(path / "5", "params").unlink()
            multihost_utils.sync_global_devices("damaged")
            restore(checkpoints, states, mesh)


if __name__ == "__main__":
    main(*sys.argv[1:])
