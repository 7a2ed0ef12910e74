"""Pallas kernels, each with its plain form; `parts` has what they share.

tests/models/fast/test_attention_kernels.py and test_delta_kernels.py compare outputs and gradients
with the plain forms; test_kernel_compilation.py compiles for TPU slices. A `misfit` is the
reason why a kernel cannot compute its arguments, or None.
"""
