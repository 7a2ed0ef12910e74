"""Text of the figures of `slices`."""

from collections.abc import Mapping, Sequence
from typing import Any

from brt.benchmarks.gpus import Gpus
from brt.benchmarks.hlo_costs import LOOPS
from brt.benchmarks.tables import Column, aligned
from brt.benchmarks.topologies import GIB, Target

SHOWN = 0.02  # loops with this share of the time

COLUMNS = (
    Column("ratio", "ratio", "{:.3f}"),
    Column("hbm_bytes", "HBM GiB", "{:.2f}", GIB),
    Column("hbm_available", "of GiB", "{:.4g}", GIB),
    Column("rows_per_chip", "rows/device", "{:g}"),
    Column("cycles", "M cycles", "{:.2f}", 1e6),
    Column("kernel_cycles", "in kernels", "{:.2f}", 1e6),
    Column("milliseconds", "ms", "{:.1f}"),
    Column("share_of_peak", "of peak", "{:.1%}"),
    Column("flops", "TFLOP", "{:.2f}", 1e12),
    Column("compile_seconds", "compile s", "{:.0f}"),
    Column("compile_cpu_seconds", "CPU s", "{:.0f}"),
)

_OF_TPUS = ("cycles", "kernel_cycles")
_OF_GPUS = (
    Column("argument_bytes", "arguments", "{:.2f}", GIB),
    Column("temporary_bytes", "temporary", "{:.2f}", GIB),
)
GPU_COLUMNS = (
    *(COLUMNS[:2] + _OF_GPUS),
    *(column for column in COLUMNS[2:] if column.key not in _OF_TPUS),
)


def heading(topology: Target) -> str:
    chip = topology.chip
    kind = "bfloat16" if chip.has_bfloat16 else "float16"
    devices = "1 device" if topology.devices == 1 else f"{topology.devices} devices"
    return (
        f"{topology.friendly} ({topology.name}): {devices} of "
        f"{chip.hbm_bytes / GIB:.4g} GiB and {chip.peak_flops / 1e12:g} TFLOP/s ({kind}), "
        f"{chip.clock / 1e9:g} GHz"
    )


def line(row: Mapping[str, Any], topology: Target) -> str:
    needed = f"{row['hbm_bytes'] / GIB:.2f} of {row['hbm_available'] / GIB:.4g} GiB of HBM a device"
    title = f"{topology.friendly} ({topology.name})"
    if not row["fits"]:
        return f"{title}: does not fit, {needed}"
    source = "a roofline" if isinstance(topology, Gpus) else "the compiler's estimates"
    return (
        f"{title}: {needed}, {row['milliseconds']:.1f} ms a step, "
        f"{row['share_of_peak']:.1%} of peak ({source}), compiled in "
        f"{row['compile_seconds']:.0f} s"
    )


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    columns = GPU_COLUMNS if "ns" in rows[0] else COLUMNS
    title, *lines = aligned(rows, columns)
    notes = ("" if row["fits"] else "   does not fit" for row in rows)
    return "\n".join([title, *(line + note for line, note in zip(lines, notes))])


def details(row: Mapping[str, Any]) -> str:
    unit = "ns" if "ns" in row else "cycles"
    if not row.get(unit):
        return ""
    total = row[unit]
    shares = ", ".join(
        f"{part.replace('_', '-')} {cost / total:.1%}"
        for part, cost in row[f"{unit}_by_part"].items()
    )
    named = "time" if unit == "ns" else unit
    lines = [row["name"], *_limits(row), f"  {named} by part: {shares}"]
    for loop in row["loops"]:
        if loop["cost"] < SHOWN * total:
            continue
        where = f"in {loop['scope'] or 'no scope'}, {'back' if loop['backward'] else 'for'}ward"
        if loop["scope"] in LOOPS:
            where = f"over {loop['scope']}"
        trips = "?" if loop["trips"] is None else loop["trips"]
        lines.append(
            f"  loop {where}: {trips} x "
            f"{_cost(loop['body_cost'], unit)}, {loop['cost'] / total:.1%}"
        )
    for place, title in (("in_loops", "inside of loops"), ("outside", "outside of loops")):
        lines.append(f"  collectives {title}: {_kinds(row['collectives'][place])}")
    if "across_slices" in row:
        lines.append(f"  {across_line(row['across_slices'])}")
    return "\n".join(lines)


def _cost(cost, unit):
    if unit == "cycles":
        return f"{cost:,} cycles"
    return f"{cost / 1e6:,.1f} ms" if cost >= 1e6 else f"{cost / 1e3:,.1f} us"


def across_line(kinds: Mapping[str, Mapping[str, int]]) -> str:
    size = sum(entry["bytes"] for entry in kinds.values()) / 2**20
    return f"between slices or nodes, {size:,.1f} MiB a device and step: {_kinds(kinds)}"


def _kinds(kinds):
    return (
        ", ".join(
            f"{entry['count']} {kind} ({entry['runs']} runs, {entry['bytes'] / 2**20:,.1f} MiB)"
            for kind, entry in kinds.items()
        )
        or "none"
    )


def _limits(row: Mapping[str, Any]) -> list[str]:
    if "ns" not in row:
        return []
    flops = ", ".join(
        f"{count / 1e12:.2f} TFLOP {kind}" for kind, count in row["product_flops"].items()
    )
    limits = row["milliseconds_by_limit"]
    calls = ", ".join(f"{runs:,} x {name}" for name, runs in row["custom_calls"].items())
    lines = [
        f"  memory of a card: arguments {row['argument_bytes'] / GIB:.2f} GiB, temporaries "
        f"{row['temporary_bytes'] / GIB:.2f} GiB",
        f"  time by limit: products {limits.get('products', 0):.1f} ms ({flops or 'none'}), memory "
        f"{limits.get('memory', 0):.1f} ms ({row['traffic_bytes'] / 1e9:.1f} GB), short kernels "
        f"{limits.get('launches', 0):.1f} ms ({row['kernels']:,} kernels in all)",
    ]
    if calls:
        lines.append(f"  counted by memory traffic only, so too fast: {calls}")
    return lines
