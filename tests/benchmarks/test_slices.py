"""Figures of a compiler for a training step: names of slices, values, commands that print them."""

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest
from jax.experimental import pallas as pl
from tiny_run import command, write_config

from brt import benchmark, train
from brt.benchmarks import gpu_steps, kernels, slices, topologies
from brt.experiment import Configuration
from brt.training.sharding import make_mesh

TEXT = (Path(__file__).parent / "program.hlo.txt").read_text()
CYCLES = 8400 + 42 + 300 + 200 + 20
"""Cycles of `TEXT`, counted manually."""


@pytest.mark.parametrize(
    ("name", "own", "devices"),
    [
        ("v2-8", "v2:2x2", 8),
        ("v4-384", "v4:4x4x12", 192),
        ("v5litepod-1", "v5e:1x1", 1),
        ("V5LitePod-256 ", "v5e:16x16", 256),
        ("v5p-12288", "v5p:16x16x24", 6144),
        ("3xv4:2x2x4", "3xv4:2x2x4", 48),
    ],
)
def test_a_slice_has_the_shape_and_the_devices_that_jax_names(name, own, devices):
    found = topologies.find(name)
    assert (found.name, found.devices) == (own, devices)


def test_each_slice_is_found_by_both_of_its_names():
    for known in topologies.KNOWN.values():
        assert topologies.find(known.name) == topologies.find(known.friendly) == known


@pytest.mark.parametrize(
    ("name", "near"), [("v4-33", "v4-32"), ("v4:2x2", "v4:2x2x"), ("0xv4-8", "v4-8")]
)
def test_a_mistyped_slice_is_refused_with_the_nearest_name(name, near):
    with pytest.raises(ValueError, match="is no slice of TPUs") as error:
        topologies.find(name)
    message = str(error.value)
    assert f"Did you mean {near}" in message
    assert all(known in message for known in ("v4-32", "v5litepod-16", "v5p-8", "v6e-256"))


@pytest.mark.parametrize(
    ("compiler", "topology", "extra"),
    [("libtpu", "v4-32", "[tpu]"), ("jax_cuda13_plugin", "h100", "[gpu-plan]")],
)
def test_without_a_compiler_one_sentence_says_how_to_install_it(
    compiler, topology, extra, monkeypatch, tmp_path, capsys
):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *package: None if name == compiler else find_spec(name, *package),
    )
    flags, file = f"--topology={topology}", write_config(tmp_path)
    assert command(monkeypatch, benchmark, flags, f"--configs={file}") == 1
    assert command(monkeypatch, train, flags, f"--gin_file={file}", "--dry_run") == 1
    assert capsys.readouterr().err.count(extra) == 2


def of_v4(flops, bundles=None):
    """Returns the figures of the manually written program, treated as a training step."""
    plan = SimpleNamespace(
        argument_size_in_bytes=700,
        output_size_in_bytes=650,
        alias_size_in_bytes=600,
        temp_size_in_bytes=50,
    )
    compiled = SimpleNamespace(
        memory_analysis=lambda: plan, cost_analysis=lambda: {"flops": 5.0}, as_text=lambda: TEXT
    )
    return slices.step_figures(compiled, flops, topologies.find("v4-8"), bundles or {})


def test_time_and_share_of_peak_follow_from_cycles_and_the_chip():
    found = of_v4(flops=1e9)
    assert found["cycles"] == CYCLES
    seconds = CYCLES / 1.05e9
    assert found["milliseconds"] == pytest.approx(1e3 * seconds)
    assert found["share_of_peak"] == pytest.approx(1e9 / seconds / 275e12)
    assert found["hbm_bytes"] == 700 + 50 + 50 and found["compiler_flops"] == 5.0
    assert sum(found["cycles_by_part"].values()) == sum(found["cycles_by_scope"].values()) == CYCLES
    assert found["loops"][0]["body_cost"] == 1050
    json.dumps(found)
    with_kernels = of_v4(1e9, {"one": 1000, "other": 24})
    assert with_kernels["cycles"] == CYCLES + 1024 and with_kernels["kernel_cycles"] == 1024


def test_ratios_are_to_the_first_of_two_configs_of_one_name():
    rows = [{"name": "x", "milliseconds": n, "tokens_per_step": 8} for n in (2, 3)]
    assert [row["ratio"] for row in slices.with_ratios(rows, "x")] == [1.0, 1.5]


@pytest.fixture
def cpu_compiler(monkeypatch):
    """Replaces a compiler by the CPU's, which reports no cycles, for as many devices."""
    monkeypatch.setattr(slices, "devices_of", lambda target: jax.devices()[: target.devices])
    monkeypatch.setattr(slices, "COMPILER_OPTIONS", None)
    monkeypatch.setattr(topologies, "check_compiler", lambda target: None)


@pytest.mark.parametrize(
    "sentence",
    [
        "Ran out of memory. Used 40.25G of 31.25G hbm. More.",
        "Ran out of memory on HBM, the total memory required for HLO temporaries (40.25G) exceeds "
        "available HBM (30.75G).",
    ],
)
def test_a_step_that_does_not_fit_is_told_with_what_it_needs(
    cpu_compiler, monkeypatch, tmp_path, capsys, sentence
):
    error = RuntimeError(f"RESOURCE_EXHAUSTED: {sentence}")

    def trace_step(experiment, mesh):
        raise error

    monkeypatch.setattr(slices, "trace_step", trace_step)
    files = f"--configs={write_config(tmp_path)}"
    assert not command(monkeypatch, benchmark, "--topology=v4-8", files)
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("tiny"))
    assert line.split()[1:3] == ["40.25", "32"] and line.endswith("does not fit")
    vmem = "Ran out of memory in memory space vmem. Used 17.90M of 16.00M vmem."  # of a kernel
    for other in ("something else", vmem):
        error = RuntimeError(other)
        with pytest.raises(RuntimeError, match=other[:20]):
            command(monkeypatch, benchmark, "--topology=v4-8", files)


@pytest.mark.parametrize(
    ("name", "own", "shown", "note"),
    [
        ("v4-8", "v4:2x2x1", "v4-8 (v4:2x2x1): 4 devices of 32 GiB", slices.ESTIMATES),
        ("h100-4", "h100-4", "4 devices of 79.1 GiB", gpu_steps.ESTIMATES),
    ],
)
def test_the_command_compiles_the_step_for_devices(
    name, own, shown, note, cpu_compiler, monkeypatch, tmp_path, capsys
):
    file, written = write_config(tmp_path), tmp_path / "slices.json"
    flags = f"--topology={name}", f"--configs={file}", f"--json={written}"
    assert not command(monkeypatch, benchmark, *flags)
    printed = capsys.readouterr().out
    assert shown in printed and note in printed
    content = json.loads(written.read_text())
    (found,) = content["slices"]
    assert content["topology"] == own and content["note"] == note
    assert found["mesh"] == {"data": 1, "fsdp": 4, "model": 1} and found["rows_per_chip"] == 1
    # Gradients of divided parameters are summed over the rows, outside of loops or inside.
    assert sum(each["bytes"] for kinds in found["collectives"].values() for each in kinds.values())
    assert {loop["trips"] for loop in found["loops"] if loop["scope"] == "layer0/states"} == {2}
    assert found["fits"] and found["flops"] > 0
    assert 0 < found["hbm_bytes"] < found["hbm_available"]
    if name == "h100-4":
        assert found["hbm_bytes"] < topologies.find(name).chip.usable_bytes
        assert {"attention", "states", "feed_forward"} <= found["ns_by_part"].keys()
        assert found["kernels"] and found["product_flops"] and found["milliseconds"] > 0


def test_a_dry_run_prints_the_figures_and_the_settings(cpu_compiler, monkeypatch, tmp_path, capsys):
    flags = "--topology=h100", f"--gin_file={write_config(tmp_path)}", "--dry_run"
    assert not command(monkeypatch, train, *flags)
    shown = capsys.readouterr().out
    assert all(part in shown for part in ("roofline", "time by part", "Trainer."))


def test_a_mesh_that_does_not_fit_the_slice_is_refused(cpu_compiler, monkeypatch, tmp_path, capsys):
    flags = "--topology=v4-16", f"--configs={write_config(tmp_path)}"
    assert command(monkeypatch, benchmark, *flags) == 1
    assert "4 batch elements cannot be divided over 8" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"\(3, -1\) does not fit 8 devices"):
        make_mesh((3, -1), jax.devices()[:8])


@pytest.mark.parametrize("name", ["v4-8", "v5e-4", "h100-2x2"])
def test_a_compiler_estimates_every_part_of_the_step(name, monkeypatch, tmp_path, capsys):
    gpu = name.startswith("h100")
    compiler, extra = ("jax_cuda13_plugin", "gpu-plan") if gpu else ("libtpu", "tpu")
    if not importlib.util.find_spec(compiler):
        pytest.skip(f'{compiler} is not installed: pip install -e ".[{extra}]"')
    file, written = write_config(tmp_path), tmp_path / "slices.json"
    flags = f"--topology={name}", f"--configs={file}", f"--json={written}"
    assert not command(monkeypatch, benchmark, *flags), capsys.readouterr().err
    (found,) = json.loads(written.read_text())["slices"]
    unit, most = ("ns", 0.2) if gpu else ("cycles", 0.1)
    parts = found[f"{unit}_by_part"]
    assert found["fits"]
    assert {"attention", "states", "feed_forward", "vocabulary", "optimizer"} <= parts.keys()
    assert parts.get("other", 0) < most * found[unit]
    loops = [loop for loop in found["loops"] if loop["scope"] == "layer0/states"]
    assert {(loop["backward"], loop["trips"]) for loop in loops} == {(False, 2), (True, 2)}
    if gpu:
        assert found["mesh"] == {"data": 2, "fsdp": 2, "model": 1}
        assert found["collectives"]["outside"]
    else:
        assert found[unit] > 10_000 and found["share_of_peak"] < 1


def test_the_largest_batch_that_fits_is_found_by_compiling(cpu_compiler, monkeypatch, tmp_path):
    def measure(experiment, topology):
        tried.append(experiment.trainer.rows // 4)
        return figures_of(tried[-1])

    def figures_of(rows):
        need = rows * 5 * topologies.GIB
        return {"fits": need <= 32 * topologies.GIB, "hbm_bytes": need, "rows_per_chip": rows}

    tried: list[int] = []
    monkeypatch.setattr(slices, "measure", measure)
    configuration = Configuration([str(write_config(tmp_path))], [])
    found = slices.largest_batch(configuration, topologies.find("v4-8"), figures_of(1))
    assert found == figures_of(6) and tried == [2, 6, 7]


def test_kernels_are_counted_by_their_loops():
    def kernel(x, y):
        y[...] = x[...]

    def step(x):
        call = pl.pallas_call(kernel, out_shape=x, interpret=True, name="copy")
        return jax.lax.scan(lambda x, _: (call(x), None), call(x), length=3)

    jaxpr = jax.make_jaxpr(step)(jax.numpy.ones(8))
    assert [times for _, times in kernels.kernel_calls(jaxpr)] == [1, 3]
