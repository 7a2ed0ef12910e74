"""The GPUs of a process in a Slurm step."""

import itertools
import re
from collections.abc import Mapping, Sequence

import jax

from brt.storage.shipped import install_command


def gpus_of_task(environment: Mapping[str, str]) -> list[int] | None:
    """Returns the GPUs that this task of a Slurm step uses, by their number among the visible ones.

    The only task of a node uses all (JAX would take the first); several tasks use those they were
    given, or one each. None leaves the choice to JAX: outside of Slurm, without GPUs, and with
    JAX_LOCAL_DEVICE_IDS.
    """
    needed = {"SLURM_LOCALID", "SLURM_NODEID", "SLURM_STEP_TASKS_PER_NODE"}
    if not needed <= environment.keys() or "JAX_LOCAL_DEVICE_IDS" in environment:
        return None
    on_node = int(environment.get("SLURM_GPUS_ON_NODE") or 0)
    names = environment.get("CUDA_VISIBLE_DEVICES")
    visible = on_node if names is None else _count(names)
    if not visible or environment.get("JAX_PLATFORMS") == "cpu":
        return None
    tasks = _tasks(environment["SLURM_STEP_TASKS_PER_NODE"])[int(environment["SLURM_NODEID"])]
    if tasks == 1 or tasks * visible == on_node:
        return list(range(visible))
    if tasks == visible:
        return [int(environment["SLURM_LOCALID"])]
    raise ValueError(
        f"{tasks} tasks of a node share {visible} GPUs, and each would use one: start one task a "
        "node (--ntasks-per-node=1) or one a GPU."
    )


def _tasks(per_node):
    """2(x3),1 is [2, 2, 2, 1]."""
    entries = re.findall(r"(\d+)(?:\(x(\d+)\))?", per_node)
    return [int(number) for number, times in entries for _ in range(int(times or 1))]


def _count(names):
    """Returns how many devices CUDA_VISIBLE_DEVICES names: those after -1 or a word are hidden."""
    valid = re.compile(r"\d+|(GPU|MIG)-.+")
    return len([*itertools.takewhile(valid.fullmatch, names.split(","))])


def check_gpus(gpus: Sequence[int] | None) -> None:
    """Refuses devices other than the GPUs that Slurm gave this process (None: not known)."""
    if gpus is None:
        return
    found = jax.local_devices()
    if len(found) != len(gpus) or found[0].platform == "cpu":
        raise ValueError(
            f"Slurm gave process {jax.process_index()} {len(gpus)} GPUs of its node "
            "(CUDA_VISIBLE_DEVICES, SLURM_GPUS_ON_NODE), and JAX found "
            f"{len(found)} x {found[0].device_kind}: check the driver (nvidia-smi) and that "
            f"{install_command('gpu')} was run, or set JAX_PLATFORMS=cpu to use none."
        )
