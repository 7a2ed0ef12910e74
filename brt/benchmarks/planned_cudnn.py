"""Compiles programs with cuDNN's attention for a card on a machine without cuDNN.

While tracing, JAX asks for cuDNN's version and this machine's GPU, although compiling needs
neither; it has no public way to name another card.
"""

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

from brt.benchmarks.gpus import CUDNN, Card

_MODULE = "jax._src.cudnn.fused_attention_stablehlo"


@contextlib.contextmanager
def cudnn_of(card: Card) -> Iterator[None]:
    """A context in which JAX's questions about cuDNN are answered for a card."""

    def capability(text):
        return tuple(map(int, text.split(".")))

    major, minor = CUDNN
    answers = {
        "check_cudnn_version": lambda: 10000 * major + 100 * minor,
        "check_compute_capability": lambda text: card.capability >= capability(text),
        "is_cuda_compute_capability_equal": lambda text: card.capability == capability(text),
    }
    jax_module = importlib.import_module(_MODULE)
    asked: dict[str, Any] = {
        name: answer for name, answer in answers.items() if hasattr(jax_module, name)
    }
    with mock.patch.multiple(jax_module, **asked):
        yield
