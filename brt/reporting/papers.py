"""The papers whose tables and figures are known, in the order of a report."""

from brt.reporting.block_recurrent import BLOCK_RECURRENT
from brt.reporting.recurrent_memory_plots import RECURRENT_MEMORY
from brt.reporting.transformer_xl import TRANSFORMER_XL

PAPERS = (BLOCK_RECURRENT, TRANSFORMER_XL, RECURRENT_MEMORY)
