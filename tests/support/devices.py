"""Stand-ins for devices of several nodes and slices."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class StandIn:
    """What JAX reads of a device when it makes a mesh."""

    id: int
    slice_index: int
    platform: str = "gpu"
    device_kind: str = "NVIDIA H100 80GB HBM3"
    coords: tuple[int, int, int] = (0, 0, 0)
    core_on_chip: int = 0

    @property
    def process_index(self):
        return self.slice_index


def gpus(*nodes):
    """Stand-ins for the GPUs of nodes with so many each."""
    slices = [node for node, count in enumerate(nodes) for _ in range(count)]
    return [StandIn(number, node) for number, node in enumerate(slices)]


def tpus(slices, shape, kind="TPU v5 lite"):
    """Stand-ins for slices of TPUs of a shape (x, y)."""
    coords = [(x, y, 0) for y in range(shape[1]) for x in range(shape[0])]
    return [
        StandIn(index * len(coords) + number, index, "tpu", kind, at)
        for index in range(slices)
        for number, at in enumerate(coords)
    ]
