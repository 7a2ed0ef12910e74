"""Products of a layer's matrices with its inputs and its attentions, plain or by Pallas kernels.

The kernels norm and drop before the products, and measure their outputs, in one pass over memory.
tests/models/test_kernel_attention.py compares both.
"""

import functools
from collections.abc import Callable, Sequence

import jax

from brt.models.fast.kernel_attention import has_kernel, heads_of, joined_heads
from brt.models.fast.kernels import output as output_kernel
from brt.models.fast.kernels import projection as projection_kernel
from brt.models.fast.loop_weights import LoopWeights, added_products, product, products
from brt.models.layers.dropout import PERIOD, dropped
from brt.models.layers.norms import RMSNorm, share_of_norm, share_of_squares
from brt.models.layers.sizes import Sizes

Attended = jax.Array | Callable[[jax.Array], jax.Array]
"""Attention, (B, T, H, K), or a function of x_BTD after attention to tokens that returns it."""


@jax.named_scope("attention")
def project(
    sizes: Sizes,
    norm: RMSNorm,
    x_BTD: jax.Array,
    mask_PD: jax.Array | None,
    weights: Sequence[LoopWeights],
) -> tuple[jax.Array, list[jax.Array]]:
    """Returns normalised activations after dropout, (B, T, D), and their products with matrices,
    (B, T, A).

    mask_PD: of the dropout, repeated along the tokens. weights: matrices (D, A).
    """
    normed_BTD = dropped(norm(x_BTD), mask_PD)
    if not _has_kernels(sizes, x_BTD, len(weights), mask_PD):
        return normed_BTD, [product("BTD,DA->BTA", normed_BTD, matrix) for matrix in weights]
    inputs = heads_of(sizes, len(x_BTD)), x_BTD, norm.scale_D[...], mask_PD
    compute = functools.partial(projection_kernel.projections, *inputs)
    return normed_BTD, products("BTD,DA->BTA", compute, weights)


def add_attended(
    sizes: Sizes, x_BTD: jax.Array, attended: Sequence[Attended], weights: Sequence[LoopWeights]
) -> tuple[jax.Array, jax.Array | None]:
    """Returns x_BTD with the products of attended_BTHK added, and the share of states, if any.

    attended: attention to tokens and, maybe, to states.
    """
    known = [y_BTHK for y_BTHK in attended if not callable(y_BTHK)]
    if len(known) > 1 and _has_kernels(sizes, x_BTD, len(weights)):
        with jax.named_scope("states"):
            joined = [joined_heads(y_BTHK) for y_BTHK in known]
            compute = functools.partial(output_kernel.outputs, heads_of(sizes, len(x_BTD)), x_BTD)
            x_BTD, *squares = added_products("BTA,AD->BTD", compute, joined, weights)
            return x_BTD, share_of_squares(*reversed(squares))
    with jax.named_scope("attention"):
        from_tokens_BTD = product("BTA,AD->BTD", joined_heads(known[0]), weights[0])
    if len(attended) == 1:
        return x_BTD + from_tokens_BTD, None
    with jax.named_scope("states"):
        to_states = attended[1]
        y_BTHK = to_states(x_BTD + from_tokens_BTD) if callable(to_states) else to_states
        from_states_BTD = product("BTA,AD->BTD", joined_heads(y_BTHK), weights[1])
        x_BTD = x_BTD + (from_tokens_BTD + from_states_BTD)
        return x_BTD, share_of_norm(from_states_BTD, from_tokens_BTD)


def _has_kernels(sizes, x_BTD, matrices, mask_PD=None):
    T, heads = x_BTD.shape[1], heads_of(sizes)
    misfit = projection_kernel.misfit(heads, T, sizes.width, matrices, x_BTD.dtype)
    mesh = jax.sharding.get_abstract_mesh()
    if not mesh.empty and mesh.shape["model"] > 1:
        misfit = "the model axis divides the matrices"
    if mask_PD is not None and (PERIOD % len(mask_PD) or T % len(mask_PD)):
        misfit = f"the dropout mask repeats every {len(mask_PD)} tokens"
    return has_kernel(sizes, f"{matrices} projections of {T} tokens", misfit, required=False)
