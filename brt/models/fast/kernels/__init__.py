"""Pallas kernels for TPUs, each with its plain form; `parts` has what they share."""
