"""The GPUs that a process of a Slurm job uses, with the environment of Slurm 22.05."""

import jax
import pytest
from devices import gpus
from jax._src import distributed, xla_bridge

from brt.host import processes
from brt.host.slurm import gpus_of_task
from brt.training.sharding import make_mesh

EIGHT = "0,1,2,3,4,5,6,7"


def task(number, tasks, on_node="", visible=None, per_node=1, **others):
    """Returns the environment of a task of a step, with so many tasks on each node."""
    step = {
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_NODELIST": "n[1-2]",
        "SLURM_STEP_TASKS_PER_NODE": tasks,
        "SLURM_NTASKS": str(2 * per_node),
        "SLURM_PROCID": str(number),
        "SLURM_NODEID": str(number // per_node),
        "SLURM_LOCALID": str(number % per_node),
    }
    gpus = {"SLURM_GPUS_ON_NODE": on_node, "CUDA_VISIBLE_DEVICES": visible}
    return step | {name: value for name, value in gpus.items() if value} | others


@pytest.mark.parametrize(
    ("environment", "gpus"),
    [
        (task(0, "1(x2)", "8", EIGHT), [*range(8)]),
        (task(1, "1(x2)", "8", EIGHT), [*range(8)]),
        (task(1, "1(x2)", "8"), [*range(8)]),  # no CUDA_VISIBLE_DEVICES
        (task(1, "1(x2)", visible=EIGHT), [*range(8)]),  # by --gres, before Slurm 20
        (task(0, "1(x2)", "8", "4,5,6,7"), [0, 1, 2, 3]),  # made fewer by the user
        (task(0, "1(x2)", "8", "GPU-6ae,GPU-7bf"), [0, 1]),
        (task(0, "1(x2)", "8", "0,1,-1,2"), [0, 1]),  # what follows -1 is not visible
        (task(0, "1", "8", EIGHT), [*range(8)]),
        (task(3, "2(x2)", "2", "0,1", per_node=2), [1]),
        (task(3, "2(x2)", "2", "1", per_node=2), [0]),  # --gpus-per-task=1
        (task(3, "2(x2)", "4", "2,3", per_node=2), [0, 1]),  # --gpus-per-task=2
        (task(8, "8(x2)", "8", EIGHT, per_node=8), [0]),
        (task(2, "2,1", "8", EIGHT, per_node=2), [*range(8)]),
        (task(0, "1(x2)"), None),
        (task(0, "1(x2)", "8", "NoDevFiles"), None),
        (task(0, "1(x2)", "8", EIGHT, JAX_LOCAL_DEVICE_IDS="0,1"), None),
        (task(0, "1(x2)", "8", EIGHT, JAX_PLATFORMS="cpu"), None),
        ({"SLURM_JOB_ID": "7", "SLURM_GPUS_ON_NODE": "8"}, None),  # of a job's script
        ({}, None),
    ],
)
def test_a_task_uses_every_gpu_that_no_other_task_uses(environment, gpus):
    assert gpus_of_task(environment) == gpus


@pytest.mark.parametrize(
    "environment",
    [
        task(0, "2(x2)", "8", EIGHT, per_node=2),
        task(2, "2,1", "8", EIGHT, per_node=2) | {"SLURM_NODEID": "0"},
        task(3, "2(x2)", "1", "0", per_node=2),
    ],
)
def test_tasks_with_idle_or_shared_gpus_are_refused(environment):
    with pytest.raises(ValueError, match="--ntasks-per-node=1"):
        gpus_of_task(environment)


class Connection:
    """Replaces JAX's coordinator and its clients."""

    def connect(self):
        pass

    def initialize(self, client):
        pass


@pytest.fixture
def join(monkeypatch):
    """Joins a Slurm step as JAX does, up to the connection; returns the GPUs that JAX may use."""
    made = lambda *arguments, **options: Connection()  # noqa: E731
    for name in ("service", "client"):
        monkeypatch.setattr(distributed._jax, f"get_distributed_runtime_{name}", made)
    monkeypatch.setattr(distributed._jax, "create_preemption_sync_manager", made)
    monkeypatch.setattr(xla_bridge, "backends_are_initialized", lambda: False)

    def run(environment, found):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("JAX_PLATFORMS", raising=False)
        monkeypatch.setattr(distributed, "global_state", distributed.State())
        monkeypatch.setattr(jax, "local_devices", lambda: found)
        processes.join()
        return xla_bridge.CUDA_VISIBLE_DEVICES.value

    yield run
    jax.config.update("jax_cuda_visible_devices", "all")
    jax.config.update("jax_rocm_visible_devices", "all")


def test_two_nodes_of_eight_gpus_are_one_mesh_of_sixteen(join):
    found = gpus(8, 8)
    for node in range(2):
        own = [device for device in found if device.slice_index == node]
        assert join(task(node, "1(x2)", "8", EIGHT), own) == EIGHT
    mesh = make_mesh((-1, 4), found)
    assert [[device.id for device in row] for row in mesh.devices.reshape(-1, 4)] == [
        [*range(first, first + 4)] for first in (0, 4, 8, 12)
    ]


def test_a_task_with_a_gpu_of_its_own_uses_that_one(join):
    assert join(task(3, "2(x2)", "2", "1", per_node=2), gpus(1)) == "0"


@pytest.mark.parametrize("found", [gpus(4), gpus(1), jax.devices()])
def test_other_devices_than_slurm_gave_are_refused(join, found):
    with pytest.raises(ValueError, match=f"{len(found)} x {found[0].device_kind}"):
        join(task(0, "1(x2)", "8", EIGHT), found)
