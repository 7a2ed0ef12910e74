"""The imports of a custom memory; docs/extending.md shows how to write one.

`X as X` exports a name to type checkers.
"""

from brt.checks import configurable as configurable
from brt.models.block_recurrent.memory import BlockStates as BlockStates
from brt.models.block_recurrent.memory import KeysValues as KeysValues
from brt.models.block_recurrent.memory import LayerMemory as LayerMemory
from brt.models.block_recurrent.memory import LayerTokens as LayerTokens
from brt.models.block_recurrent.memory import MemoryResult as MemoryResult
from brt.models.block_recurrent.memory import TokenMemory as TokenMemory
from brt.models.block_recurrent.memory import mix_with_attention as mix_with_attention
from brt.models.caches import WindowCache as WindowCache
from brt.models.caches import select_rows as select_rows
from brt.models.fast.attention import attend as attend
from brt.models.layers.initializers import DENSE as DENSE
from brt.models.layers.initializers import normal as normal
from brt.models.layers.initializers import parameter as parameter
from brt.models.layers.norms import RMSNorm as RMSNorm
from brt.models.layers.norms import share_of_norm as share_of_norm
from brt.models.ops import at_least_float32 as at_least_float32
from brt.models.ops import keep_mask as keep_mask
from brt.models.ops import unit_heads as unit_heads
from brt.models.segment_memory import SegmentMemory as SegmentMemory
from brt.models.sizes import Sizes as Sizes
