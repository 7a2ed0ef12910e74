"""The imports of a custom memory; docs/extending.md shows how to write one."""

from brt.checks import configurable
from brt.models.block_recurrent.memory import (
    BlockStates,
    KeysValues,
    LayerMemory,
    LayerTokens,
    MemoryResult,
    TokenMemory,
    mix_with_attention,
)
from brt.models.caches import WindowCache, select_rows
from brt.models.fast.attention import attend
from brt.models.layers.initializers import DENSE, normal, parameter
from brt.models.layers.norms import RMSNorm, share_of_norm
from brt.models.ops import at_least_float32, keep_mask, unit_heads
from brt.models.segment_memory import SegmentMemory
from brt.models.sizes import Sizes

__all__ = [
    "DENSE",
    "BlockStates",
    "KeysValues",
    "LayerMemory",
    "LayerTokens",
    "MemoryResult",
    "RMSNorm",
    "SegmentMemory",
    "Sizes",
    "TokenMemory",
    "WindowCache",
    "at_least_float32",
    "attend",
    "configurable",
    "keep_mask",
    "mix_with_attention",
    "normal",
    "parameter",
    "select_rows",
    "share_of_norm",
    "unit_heads",
]
