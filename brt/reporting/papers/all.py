"""The papers whose tables and figures are known, in the order of a report."""

from brt.reporting.papers.adding_recurrence import ADDING_RECURRENCE
from brt.reporting.papers.block_recurrent import BLOCK_RECURRENT
from brt.reporting.papers.recurrent_memory_plots import RECURRENT_MEMORY
from brt.reporting.papers.transformer_xl import TRANSFORMER_XL

PAPERS = (BLOCK_RECURRENT, TRANSFORMER_XL, RECURRENT_MEMORY, ADDING_RECURRENCE)
