"""Interval reports: ratios of sums, whatever the run was interrupted by."""

import json
import math
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from brt.training.records.metrics import Interval, device_peak, peak_bytes, shown
from brt.training.train_step import StepMetrics


def metrics(seed, finite=True, weight=None):
    rng = np.random.default_rng(seed)
    weight = float(rng.integers(1, 200)) if weight is None else weight
    means = {"learning_rate": rng.random(), "layer1/kept": rng.random()}
    if not finite:
        means = {name: math.nan for name in means}
    return StepMetrics(
        nats=np.float32(rng.random() * 5 * weight),
        weight=np.float32(weight),
        correct=np.float32(rng.random() * weight),
        finite=np.bool_(finite),
        means=means,
    )


def filled(steps, interval=None):
    interval = interval or Interval()
    for step in steps:
        interval.add(step)
    return interval


@pytest.mark.parametrize("count", [1, 2, 7])
def test_an_interval_reports_ratios_of_sums(count):
    steps = [metrics(seed, weight=[200.0, 1.0][seed % 2]) for seed in range(count)]
    report = filled(steps).report()
    nats = sum(float(step.nats) for step in steps)
    weight = sum(float(step.weight) for step in steps)
    assert report["train/loss"] == pytest.approx(nats / weight, rel=1e-12)
    assert report["train/bits_per_token"] == pytest.approx(nats / weight / math.log(2), rel=1e-12)
    correct = sum(float(step.correct) for step in steps)
    assert report["train/accuracy"] == pytest.approx(correct / weight, rel=1e-12)
    assert report["train/scored_tokens"] == weight
    assert report["train/skipped_steps"] == 0
    for name in ("learning_rate", "layer1/kept"):
        expected = sum(step.means[name] for step in steps) / count
        assert report[f"train/{name}"] == pytest.approx(expected, rel=1e-12)
    if count > 1:
        mean_of_ratios = np.mean([step.nats / step.weight for step in steps])
        assert abs(report["train/loss"] - mean_of_ratios) > 0.01


@pytest.mark.parametrize("cut", range(6))
def test_a_saved_and_restored_interval_reports_the_same_bits(cut):
    steps = [metrics(seed, finite=seed != 3) for seed in range(6)]
    whole = filled(steps).report()
    first = filled(steps[:cut])
    restored = Interval(json.loads(json.dumps(first.sums)))
    assert filled(steps[cut:], restored).report() == whole


def test_skipped_steps_are_counted_and_left_out_of_the_means():
    finite, skipped = [metrics(0), metrics(2)], metrics(1, finite=False, weight=0.0)
    report = filled([finite[0], skipped, finite[1]]).report()
    without = filled(finite).report()
    assert report.pop("train/skipped_steps") == 1 and without.pop("train/skipped_steps") == 0
    assert report == without


def test_a_mean_is_over_the_steps_that_report_it():
    """Segments over devices report no metrics of the model; a resumed run may begin with them."""
    steps = [metrics(seed) for seed in range(3)]
    means = [step.means for step in steps]
    saved = filled(steps[:2]).sums
    last = steps[2]._replace(means={"learning_rate": means[2]["learning_rate"]})
    report = filled([last], Interval(saved)).report()
    kept = (means[0]["layer1/kept"] + means[1]["layer1/kept"]) / 2
    rate = sum(each["learning_rate"] for each in means) / 3
    assert report["train/layer1/kept"] == pytest.approx(kept, rel=1e-12)
    assert report["train/learning_rate"] == pytest.approx(rate, rel=1e-12)


def test_an_interval_of_skipped_steps_only_can_still_be_reported():
    report = filled([metrics(0, finite=False, weight=0.0)] * 2).report()
    assert report["train/skipped_steps"] == 2
    assert all(math.isfinite(value) for value in report.values())
    json.dumps(report)
    assert "train/loss" not in report  # which would be 0
    assert shown(report | {"perf/tokens_per_second": 5000.0}) == "5,000 tokens/s"


@pytest.mark.parametrize(
    ("kind", "peak"),
    [
        ("TPU v5 lite", 197e12),
        ("TPU v5p", 459e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA A100-SXM4-40GB", 312e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA L40S", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("cpu", None),
    ],
)
def test_the_peak_is_that_of_the_longest_name_that_fits(kind, peak, monkeypatch):
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(device_kind=kind)])
    assert device_peak() == peak


def test_a_steps_peak_grows_with_its_arrays_without_compiling():
    compiled = []

    def step(state, x):
        for _ in range(3):
            x = jax.numpy.tanh(x @ state)
        return state + x.sum(), x.mean()

    def listen(name, seconds, **_):
        if "backend_compile" in name:
            compiled.append(name)

    jax.monitoring.register_event_duration_secs_listener(listen)
    found = []
    try:
        for size in (64, 128):
            arguments = jax.numpy.ones((size, size)), jax.numpy.ones((4 * size, size))
            step_function = jax.jit(step, donate_argnums=0)
            state, _ = step_function(*arguments)
            before = len(compiled)
            found.append(peak_bytes(step_function, state, arguments[1]))
            assert len(compiled) == before > 0
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    if jax.devices()[0].memory_stats() is None:
        # State and input at least, in float32; and four times as much for twice the size.
        assert found[0] >= 5 * 64 * 64 * 4 and found[1] > 3.5 * found[0]
        assert peak_bytes(step, *arguments) is None
