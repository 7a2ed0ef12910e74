"""The kind of device that is compiled for."""

import jax


def on_tpu() -> bool:
    mesh = jax.sharding.get_abstract_mesh()
    device = None if mesh.empty else mesh.abstract_device
    kind = jax.devices()[0].device_kind if device is None else device.device_kind
    return kind.startswith("TPU")
