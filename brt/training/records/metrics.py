"""Numbers that a run reports."""

import math
import re
from collections.abc import Callable
from typing import Any

import jax

from brt.training.records.goodput import spent
from brt.training.train_step import StepMetrics

PEAK_FLOPS = {
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5": 459e12,
    "TPU v6 lite": 918e12,
    "NVIDIA A100": 312e12,
    "NVIDIA H100": 989e12,
    "NVIDIA H100 NVL": 835e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H200": 989e12,
    "NVIDIA H200 NVL": 835e12,
    "NVIDIA B200": 2250e12,
    "NVIDIA GeForce RTX 4090$": 165.2e12,
    "NVIDIA L4$": 121e12,
    "Tesla T4$": 65e12,
}
"""Dense operations per second of one device in bfloat16 (T4: float16), from data sheets.

The longest key that begins JAX's device kind counts ($: is all of it, as L40 begins as L4).
"""


def device_peak() -> float | None:
    kind = jax.devices()[0].device_kind
    matches = [name for name in PEAK_FLOPS if re.match(name, kind)]
    return PEAK_FLOPS[max(matches, key=len)] if matches else None


def peak_bytes(step_function: Callable, *arguments: Any) -> int | None:
    """Returns the peak memory of one device in bytes, or None where it is not known.

    It is the device's own count since the process began, or else XLA's plan for the step.
    """
    counted = jax.local_devices()[0].memory_stats() or {}
    if "peak_bytes_in_use" in counted:
        return int(counted["peak_bytes_in_use"])
    lower = getattr(step_function, "lower", None)  # a wrapper may have it, too
    if lower is None:
        return None
    with spent("compile"):
        return compiled_bytes(lower(*arguments).compile())


def compiled_bytes(compiled: jax.stages.Compiled) -> int | None:
    """Returns bytes a device that XLA plans for arguments, results and buffers of a function."""
    plan = compiled.memory_analysis()
    if plan is None:
        return None
    held = plan.argument_size_in_bytes + plan.output_size_in_bytes - plan.alias_size_in_bytes
    return int(held + plan.temp_size_in_bytes)


def speed(
    tokens_per_step: int, seconds: float, forward_flops: float, peak: int | None
) -> dict[str, float]:
    tokens = tokens_per_step / seconds
    scalars = {"perf/tokens_per_second": tokens, "perf/step_seconds": seconds}
    if peak is not None:
        scalars["perf/peak_bytes"] = peak
    if device := device_peak():
        scalars["perf/mfu"] = 3 * forward_flops * tokens / (device * jax.device_count())
    return scalars


SHOWN = {
    "train/loss": "loss {:.4f}",
    "train/bits_per_token": "bits/token {:.4f}",
    "train/learning_rate": "lr {:.2e}",
    "perf/tokens_per_second": "{:,.0f} tokens/s",
}


def shown(scalars: dict[str, float]) -> str:
    # If all steps were skipped, there is no loss and no rate.
    return "  ".join(form.format(scalars[name]) for name, form in SHOWN.items() if name in scalars)


class Interval:
    """Sums of step metrics since the last report; checkpointed, for exact resuming."""

    def __init__(self, saved: dict | None = None):
        self.sums: dict[str, float] = dict(saved or {})

    def add(self, metrics: StepMetrics) -> None:
        values: dict[str, Any] = {
            "nats": metrics.nats,
            "weight": metrics.weight,
            "correct": metrics.correct,
            "steps": 1.0,
            "skipped": 0.0 if metrics.finite else 1.0,
        }
        if metrics.finite:
            values |= {f"mean/{name}": value for name, value in metrics.means.items()}
            values |= {f"count/{name}": 1.0 for name in metrics.means}
        for name, value in values.items():
            self.sums[name] = self.sums.get(name, 0.0) + float(value)

    def report(self) -> dict[str, float]:
        """Returns scalars `train/*` (loss in nats per scored token), and starts again.

        Without a scored token there is no loss.
        """
        sums = self.sums
        self.sums = {}
        scored = {}
        if weight := sums["weight"]:
            loss = sums["nats"] / weight
            scored = {
                "train/loss": loss,
                "train/bits_per_token": loss / math.log(2),
                "train/accuracy": sums["correct"] / weight,
            }
        means = [name.removeprefix("mean/") for name in sums if name.startswith("mean/")]
        return {
            **scored,
            "train/scored_tokens": weight,
            "train/skipped_steps": sums["skipped"],
            **{f"train/{name}": sums[f"mean/{name}"] / sums[f"count/{name}"] for name in means},
        }
