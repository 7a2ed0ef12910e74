"""The loop over the blocks of a whole stack (block feedback).

Plain counterpart: `brt.models.ops.scan_blocks`. With kernels a step for a TPU v4 took 63.6 M cycles
unrolled, not 87.3 M (docs/benchmarks/tpu_compiler.md): nothing is stacked.
"""

import functools
from collections.abc import Callable
from typing import Any

from brt.models.fast.block_loop import scan_blocks
from brt.models.fast.table import wants_kernels
from brt.models.sizes import Sizes

UNROLLED = 8
"""Blocks of an iteration."""


def stack_scan(sizes: Sizes) -> Callable[..., tuple[Any, Any, Any]]:
    """Returns the loop over blocks; with kernels unrolled."""
    return functools.partial(scan_blocks, unroll=UNROLLED) if wants_kernels(sizes) else scan_blocks
