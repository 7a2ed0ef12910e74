"""Measures the systems of Table 1 on a GPU or TPU: scripts/measure_accelerator.sh."""
