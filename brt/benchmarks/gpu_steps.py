"""A roofline of the time, and collectives, of a training step compiled for NVIDIA GPUs."""

from collections import Counter
from typing import Any

from brt.benchmarks import hlo, hlo_costs
from brt.benchmarks.gpus import Card
from brt.benchmarks.roofline import ATTENTION, TRITON, Kernel, Kernels

PRODUCTS = 0.70
"""Share of the card's peak in matrix products."""
FUSED_ATTENTION = 0.18
"""Share that cuDNN's attention with a bias reaches: 2.7 ms of an H100 for a layer of 64 windows of
512 and 8 heads of 128, forward and backward (brt.models.fast.cudnn_attention)."""
TRITON_ATTENTION = 0.30
"""Assumed, not measured, for Pallas Triton kernels of attention: 1.0 ms for these windows on an
H100; by its instructions 0.9 to 1.2 ms.
"""
BANDWIDTH = 0.85
"""Share of the memory's bandwidth in kernels."""
LAUNCH = 4e-6
"""Least seconds of a kernel, with the gap before the next one (assumed)."""

ESTIMATES = (
    f"Time is estimated by a roofline over the compiled program: products at {PRODUCTS:.0%} of the "
    f"card's peak, {TRITON_ATTENTION:.0%} in Pallas kernels, "
    f"memory at {BANDWIDTH:.0%} of its bandwidth, at least {1e6 * LAUNCH:g} us a "
    "kernel. Nothing was run: the choice of kernels by autotuning, collectives and their overlap "
    "(NCCL), caches and the host are not in it."
)


def seconds(kernel: Kernel, card: Card) -> dict[str, float]:
    """Returns seconds of one run of a kernel: the longest of products, memory and launch."""
    attention = {ATTENTION: FUSED_ATTENTION, TRITON: TRITON_ATTENTION}
    rates = {kind: share * card.peak_flops for kind, share in attention.items()}
    products = sum(
        flops / rates.get(kind, PRODUCTS * card.flops_of(kind))
        for kind, flops in kernel.flops.items()
    )
    return {
        "products": products,
        "memory": kernel.bytes / (BANDWIDTH * card.bandwidth),
        "launches": LAUNCH,
    }


def program_figures(program: hlo.Program, flops: float, card: Card) -> dict[str, Any]:
    """Returns time, operations, traffic and collectives of one run of a program."""
    kernels = Kernels(program)
    by_type: Counter[str] = Counter()
    by_limit: dict[str, float] = {}
    uncounted: Counter[str] = Counter()
    number = size = 0
    for kernel, times in kernels.runs():
        taken = seconds(kernel, card)
        limit = max(taken, key=lambda name: taken[name])
        by_limit[limit] = by_limit.get(limit, 0.0) + 1000 * times * taken[limit]
        by_type.update({kind: times * count for kind, count in kernel.flops.items()})
        if kernel.target and not kernel.flops:
            uncounted[kernel.target] += times
        number, size = number + times, size + times * kernel.bytes

    def nanoseconds(instruction):
        kernel = kernels.of(instruction)
        return round(1e9 * max(seconds(kernel, card).values())) if kernel else 0

    costs = hlo_costs.costs(program, nanoseconds)
    total = costs.total / 1e9
    return {
        "ns": costs.total,
        "milliseconds": 1000 * total,
        "share_of_peak": flops / (total * card.peak_flops) if total else 0.0,
        "kernels": number,
        "traffic_bytes": size,
        "product_flops": dict(by_type),
        "custom_calls": dict(uncounted),
        "milliseconds_by_limit": by_limit,
        "ns_by_part": costs.by_part,
        "ns_by_scope": costs.by_scope,
        "loops": [loop._asdict() for loop in costs.loops],
        "collectives": hlo_costs.collective_sums(hlo_costs.collectives(program)),
    }
