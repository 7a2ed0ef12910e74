"""Chooses the form of each operation, and logs it once.

| form | where | attention | dropout | cell |
|---|---|---|---|---|
| default | everywhere | `attention` | drawn before | `block_loop` |
| kernel | TPUs, where the sizes fit | Pallas kernels | drawn in the kernel | a Pallas kernel |
| kernel | NVIDIA GPUs, by the binding | Pallas kernels | drawn in the kernel | unrolled loop |
| cudnn | Hopper, where it was measured to be faster | cuDNN | of keys | `block_loop` |
| cudnn | NVIDIA GPUs, by the binding | cuDNN | of keys | `block_loop`, cuDNN |

All have the arguments and results of `brt.models.ops`. The choice is made when a step is traced,
because a CPU compiles for other devices too.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from brt.host.progress import say
from brt.models import ops
from brt.models.axis_rules import on_gpu, on_tpu
from brt.models.fast import (
    attention,
    block_loop,
    cudnn_attention,
    key_dropout,
    relative_attention,
)
from brt.models.fast.bias_shards import attention_by_shard, tables_by_shard
from brt.models.ops import CellOps, LayerOps
from brt.models.sizes import Sizes

DeltaRule = Callable[[jax.Array, Sequence[jax.Array]], tuple[jax.Array, jax.Array]]
BINDING = cudnn_attention.BINDING
unrolled_blocks = functools.partial(block_loop.scan_blocks, unroll=8)
"""Not stacking residuals saves an estimated 3.4 % of a step of pg19_rec_fixed_skip on an H100."""


def layer_ops(sizes: Sizes, window: int, states: int, dtype: DTypeLike) -> LayerOps:
    """Returns the forms of a layer's operations.

    states: S that its tokens attend to, or 0.

    Raises a `ValueError`, with the binding, for a required form that cannot compute this layer.
    """
    drops_keys = sizes.attention_dropout == "keys"
    biases = window, states if drops_keys else 0
    if sizes.attention_form == "cudnn":
        return _with_attention(_cudnn(sizes, dtype, biases), sizes)
    is_faster = on_gpu() and cudnn_attention.is_faster(sizes.head_size, *biases, dtype)
    if sizes.attention_form == "auto" and is_faster:
        drops = ", plain with dropout" if sizes.attention_dropout == "weights" else ""
        what = f"a window of {window} tokens, {sizes.num_heads} heads of {sizes.head_size}"
        _say_once(f"Attention, {what}: cuDNN{drops}")
        return _with_attention(cudnn_attention.without_dropout, sizes)
    chosen = _with_attention(attention.attend, sizes)
    if wants_kernels(sizes):
        kernels, heads = kernels_for(sizes)
        no = "it drops keys (attention_dropout)" if drops_keys else None
        what = f"Attention, a window of {window} tokens"
        misfit = no or _at_once() or kernels.window_misfit(heads, window, dtype)
        if has_kernel(sizes, what, misfit):
            chosen = chosen._replace(
                window_tables=kernels.window_tables,
                window_attention=functools.partial(
                    kernels.window_attention, kernels.attend_to_window
                ),
            )
        what = f"Attention, {window} queries and {states} keys of a block"
        misfit = no or kernels.states_misfit(heads, window, states, dtype)
        if states and has_kernel(sizes, what, misfit):
            chosen = chosen._replace(
                states_dropout=kernels.states_dropout,
                attention_to_states=functools.partial(
                    kernels.attention_to_states, kernels.attend_to_states
                ),
            )
    return chosen


def cell_ops(
    sizes: Sizes,
    window: int,
    states: int,
    dtype: DTypeLike,
    gate: Callable[..., Any] | None,
) -> CellOps:
    """Returns the forms of a cell's operations.

    gate: the cell's only one, after both attentions; None: another arrangement.
    """
    attend = _cudnn(sizes, dtype) if sizes.attention_form == "cudnn" else attention.attend
    by_head = functools.partial(ops.attention_by_head, attention=attend)
    chosen = CellOps(by_head, block_loop.scan_blocks)
    if wants_kernels(sizes):
        kernels, heads = kernels_for(sizes)
        misfit = _at_once() or kernels.cell_misfit(heads, states, window, sizes.width, dtype)
        if gate is None:
            misfit = "it has several gates, or its queries wait for one"
        what = f"Step of a cell, {states} states and blocks of {window} tokens"
        is_whole = has_kernel(sizes, what, misfit, required=False)
        if is_whole:
            scan_cell = functools.partial(kernels.scan_cell, gate)
            chosen = chosen._replace(scan_blocks=scan_cell)
        # For a step outside that loop, or of another arrangement.
        found = []
        for keys in (states, 2 * window):
            misfit = kernels.states_misfit(heads, states, keys, dtype)
            what = f"Attention, {states} queries and {keys} keys of a block"
            found.append(has_kernel(sizes, what, misfit, required=not is_whole))
        if all(found):
            chosen = chosen._replace(attention_by_head=kernels.attention_by_head)
            if on_gpu():
                chosen = chosen._replace(scan_blocks=unrolled_blocks)
    return chosen


def form_by_distance(
    sizes: Sizes, rows: int, queries: int, keys: int, misfit: str | None
) -> Callable[..., jax.Array]:
    """Returns a form of `plain_attend_by_distance` for a batch of `rows`."""
    if wants_kernels(sizes):
        from brt.models.fast.kernels import relative as relative_kernel

        heads = kernels_for(sizes, rows)[1]._replace(qk_norm=False)
        misfit = misfit or ("GPUs have none" if on_gpu() else relative_kernel.misfit(heads, keys))
        what = f"Attention, {queries} queries and {keys} keys by distance"
        if has_kernel(sizes, what, misfit, "TransformerXL.attention_form"):
            return functools.partial(relative_kernel.attend_by_distance, heads)
    return relative_attention.attend_by_distance


def delta_rule(
    sizes: Sizes,
    dtype: DTypeLike,
    plain: DeltaRule,
    matrix_BHKK: jax.Array,
    inputs: Sequence[jax.Array],
) -> tuple[jax.Array, jax.Array]:
    """Returns the results of `plain`, `gated_delta.delta_rule`, or of its kernels.

    dtype: of activations, and of the operands of a kernel's products.
    """
    if not ((on_tpu() or on_gpu()) and wants_kernels(sizes)):
        return plain(matrix_BHKK, inputs)
    B, T = inputs[-1].shape[:2]
    kernels, heads = kernels_for(sizes, B)
    misfit = kernels.delta.misfit(heads, T, dtype)
    if has_kernel(sizes, f"Delta rule, {T} tokens", misfit, required=False):
        return kernels.delta.delta_rule(heads, dtype, matrix_BHKK, by_channel(inputs))
    return plain(matrix_BHKK, inputs)


def by_channel(inputs: Sequence[jax.Array]) -> list[jax.Array]:
    """Returns the inputs of the delta rule with a head's decay as that of each of its channels.

    Kernels for decays of heads would save an estimated 5 % of a step of three layers on a TPU v4.
    """
    q_BTHK, k_BTHK, v_BTHK, log, step_BTH = inputs
    if log.ndim == 3:
        log = jnp.broadcast_to(log[..., None], k_BTHK.shape)
    return [q_BTHK, k_BTHK, v_BTHK, log, step_BTH]


def stack_scan(sizes: Sizes) -> Callable[..., tuple[Any, Any, Any]]:
    """Returns the loop over the blocks of a stack (block feedback); with kernels unrolled.

    Nothing is stacked then: a step for a TPU v4 takes an estimated 64.0 M cycles, not 86.4 M.
    """
    return unrolled_blocks if wants_kernels(sizes) else block_loop.scan_blocks


def kernels_for(sizes: Sizes, rows: int = 1) -> tuple[Any, Any]:
    """Returns the kernels of this kind of device, and the heads that they compute."""
    from brt.models.fast import gpu_forms, kernel_forms

    kernels = gpu_forms if on_gpu() else kernel_forms
    return kernels, kernels.heads_of(sizes.num_heads, sizes.head_size, rows)


def wants_kernels(sizes: Sizes) -> bool:
    return sizes.attention_form == "kernel" or (sizes.attention_form == "auto" and on_tpu())


def has_kernel(
    sizes: Sizes, what: str, misfit: str | None, binding: str = BINDING, required: bool = True
) -> bool:
    """Returns whether `what` is a kernel where kernels are wanted, and logs it once.

    misfit: a reason against a kernel, or None. Raises a `ValueError` for it if the form is "kernel"
    and `required`.
    """
    if sizes.attention_form == "kernel" and misfit and required:
        raise ValueError(f'{binding} = "kernel": {what}: {misfit}. Use "auto" or "plain".')
    slow = "" if on_tpu() or on_gpu() else ", interpreted on CPUs (slow)"
    found = f"no kernel, because {misfit}" if misfit else f"a Pallas kernel{slow}"
    _say_once(f"{what}, {sizes.num_heads} heads of {sizes.head_size}: {found}")
    return not misfit


def _with_attention(attend, sizes):
    drops = key_dropout if sizes.attention_dropout == "keys" else ops
    window_tables = functools.partial(drops.window_tables, table=attention.window_table)
    in_window = attend
    # cuDNN takes one bias: by shard if weights are dropped, which is plain then.
    is_plain = attend is attention.attend
    drops_weights = attend is cudnn_attention.without_dropout and drops is ops
    if (is_plain or drops_weights) and not jax.sharding.get_abstract_mesh().empty:
        window_tables = functools.partial(tables_by_shard, window_tables, is_plain)
        in_window = functools.partial(attention_by_shard, attend)
    return LayerOps(
        window_tables,
        functools.partial(ops.window_attention, attention=in_window),
        drops.states_dropout,
        functools.partial(drops.attention_to_states, attention=attend),
    )


def _at_once():
    """Pallas cannot batch TPU kernels whose arrays stay in HBM."""
    at_once = on_tpu() and cudnn_attention.are_layers_at_once()
    return "its layers run at once (segments_together)" if at_once else None


def _cudnn(sizes, dtype, biases=(0, 0)):
    wrong_size = cudnn_attention.size_misfit(sizes.head_size, *biases)
    if misfit := cudnn_attention.misfit(dtype) or wrong_size:
        raise ValueError(f'{BINDING} = "cudnn": {misfit}. Or use "plain".')
    _say_once(f"Attention, {sizes.num_heads} heads of {sizes.head_size}: cuDNN")
    return cudnn_attention.cudnn_attention


@functools.cache
def _say_once(line):
    say(line)
