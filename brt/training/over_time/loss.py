"""The loss of a step whose segments are divided over N devices: an axis of the mesh over time.

A device has all parameters and K / N of the K segments. Two schedules decide which, and when it
runs their layers: `ring.py` for all memories, `scan.py` for those whose states an associative scan
combines. Gradients flow through all segments of a step, as in `unroll` with depth None.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from brt.data.streams.batch import Batch
from brt.models.axis_rules import one_data_shard
from brt.models.mesh_axes import OVER_TIME
from brt.models.model import Model
from brt.training.over_time.order import after, first_values
from brt.training.over_time.ring import run_ring
from brt.training.over_time.scan import run_scan, scan_is_faster


def loss_over_time(
    bind: Callable[[Any], Model],
    params: Any,
    caches: tuple,
    batch: Batch,
    weights_KBT: jax.Array,
    total: jax.Array,
) -> tuple:
    """Returns the results of a loss of `make_loss`, without metrics of the model, on the active
    mesh.

    `over_time.mesh.divided` makes that mesh and checks the settings. Batch elements are divided
    over its data axis. The loss is the weighted sum of all targets, divided by `total`.
    """
    mesh = jax.sharding.get_abstract_mesh()
    N, K = mesh.shape[OVER_TIME], len(batch.inputs_KBT)
    added = jax.eval_shape(lambda: _metrics(bind(params), batch, caches))
    if "added_nats" in added:
        raise ValueError("Devices over time do not compute the model's own loss (`added_nats`).")
    arrays = batch.inputs_KBT, batch.targets_KBT, weights_KBT, batch.starts_KB
    scanned = scan_is_faster(bind(params), K, N, arrays[0].shape[-1])

    def of_devices(x):  # (N, R, ...): consecutive segments, or every N-th
        if scanned:
            return x.reshape(N, -1, *x.shape[1:])
        return x.reshape(-1, N, *x.shape[1:]).swapaxes(0, 1)

    divided = jax.tree.map(of_devices, arrays)

    def local(params, caches, divided, total):  # its sums over a device
        with one_data_shard():
            model = bind(params)
            inputs_RBT, targets_RBT, weights_RBT, starts_RB = (x[0] for x in divided)
            x_RBTD = after(total, jax.vmap(model.embed)(inputs_RBT))
            if scanned:
                x_RBTD, caches = run_scan(model, x_RBTD, caches, starts_RB, OVER_TIME)
            else:
                x_RBTD, caches = run_ring(model, x_RBTD, caches, starts_RB, N)
            weights_RBT = weights_RBT / jnp.maximum(total, 1e-6)
            loss, correct = model.weighted_losses(x_RBTD, targets_RBT, weights_RBT)
            return loss.sum(), (correct.sum(), caches)

    def of_device(*arrays):
        (loss, (correct, caches)), grads = jax.value_and_grad(local, has_aux=True)(*arrays)
        loss, correct = after(first_values(grads), (loss, correct))
        sums = jax.lax.psum((loss, correct, grads), (OVER_TIME, "data"))
        return sums, jax.tree.map(lambda x: x[None], after(sums[0], caches))

    whole, rows = PartitionSpec(), PartitionSpec("data")
    both = jax.shard_map(
        of_device,
        in_specs=(whole, rows, PartitionSpec(OVER_TIME, None, "data"), whole),
        out_specs=(whole, PartitionSpec(OVER_TIME, "data")),
        axis_names={OVER_TIME, "data"},
        check_vma=False,
    )

    # The gradient is part of the forward pass, so that the sums over devices follow all exchanges.
    def forward(params):
        (loss, correct, grads), caches_N = both(params, caches, divided, total)
        sums = total * loss, weights_KBT.sum(), total * correct
        return (loss, (jax.tree.map(lambda x: x[-1 if scanned else 0], caches_N), sums, {})), grads

    loss = jax.custom_vjp(lambda params: forward(params)[0])
    loss.defvjp(forward, lambda grads, given: (jax.tree.map(lambda x: given[0] * x, grads),))
    return loss(params)


def _metrics(model, batch, caches):
    return model.stack(model.embed(batch.inputs_KBT[0]), caches)[2]
