"""Measures a GPU or TPU in a few minutes: steps, agreement with the CPU, decoding.

The most important measurements come first. The same command continues after a stop: measurements
in its file are not repeated. On a CPU everything is tiny, to test the script.
"""

import functools
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
from absl import flags
from accelerator import agreement, decoding
from accelerator import systems as rows_of_table
from accelerator.systems import BASELINE, System, Timed, out_of_memory, time_step

from brt import command_line
from brt.storage.replaced_files import replace_file
from brt.sweeps.scales import SCALES, Scale
from brt.training.records.metrics import device_peak

FLAGS = flags.FLAGS
flags.DEFINE_list("systems", [], "Systems of Table 1 to measure; all by default.")
flags.DEFINE_string("figures", "accelerator.json", "The file to write; a table goes beside it.")
flags.DEFINE_float("minutes", 10, "How long measuring takes, at most about.", 0)

DECODED = "pg19_rec_fixed_skip"
BATCHES = (1, 8, 64)
NO_TIME = "not run: no time left"


class Plan(NamedTuple):
    """Scales, bindings and sizes of the measurements on a kind of device."""

    published: Scale
    small: Scale
    bindings: tuple[str, ...]
    rows: int
    tokens: int
    seconds: float
    written: int


ROW_BYTES = 4 * 2**30
"""Device memory per batch element, for the first guess of the batch."""
MOST_ROWS = 32
FORMS = {
    "gpu": (
        ("plain", "weights"),
        ("kernel", "weights"),
        ("cudnn", "keys"),
        ("plain", ""),
        ("kernel", ""),
        ("cudnn", ""),
    ),
    "tpu": (("plain", ""), ("kernel", "")),
}
"""By platform: forms of attention to compare, and the dropout of each; "": none."""
BY_FORM = BASELINE, "pg19_rec_fixed_skip"


def plan() -> Plan:
    if jax.default_backend() == "cpu":
        tiny = ("BlockRecurrentTransformer.vocabulary_size = 256",)
        return Plan(SCALES["tiny"], SCALES["tiny"], tiny, 1, 4096 // SCALES["tiny"].lengths, 0, 4)
    counted = jax.local_devices()[0].memory_stats() or {}
    room = counted.get("bytes_limit", 16 * 2**30)
    rows = 1
    while 2 * rows <= min(room // ROW_BYTES, MOST_ROWS):
        rows *= 2
    small = SCALES["small"]._replace(layers=6)
    bfloat16 = ('BlockRecurrentTransformer.activation_dtype = "bfloat16"',)
    return Plan(SCALES["paper"], small, bfloat16, rows, 4096, 5.0, 64)


class Measured(NamedTuple):
    """Figures by system and by batch; an entry's `error` explains missing figures."""

    steps: dict[str, dict[str, Any]]
    agreement: dict[str, dict[str, Any]]
    decoding: dict[int, dict[str, Any]]


def measure(
    names: Sequence[str],
    minutes: float,
    report: Callable[[str], None] = print,
    found: Measured | None = None,
    keep: Callable[[Measured], None] = lambda found: None,
) -> Measured:
    """Measures steps, then decoding and agreement of the first systems, then the others.

    Args:
        names: of configs; () for all of Table 1.
        minutes: after which nothing new starts.
        report: gets a line for each measurement.
        found: of an earlier call; only failed and missing measurements are made.
        keep: called after each measurement.
    """
    of_device = plan()
    until = time.monotonic() + 60 * minutes
    published = rows_of_table.systems(of_device.published, names, of_device.bindings)
    tiny = of_device.bindings if jax.default_backend() == "cpu" else ()
    dropless = ("BlockRecurrentTransformer.dropout = 0.0", *tiny)
    small = {s.name: s for s in rows_of_table.systems(of_device.small, names, dropless)}
    found = found or Measured({}, {}, {})
    longest = 0.0

    def run(place, key, title, work):
        nonlocal longest
        if "error" not in place.get(key, {"error": NO_TIME}):
            return
        begun = time.monotonic()
        if begun + longest > until:
            place[key] = {"error": NO_TIME}
        else:
            place[key] = _attempt(work)
            longest = max(longest, time.monotonic() - begun)
        report(f"{title}: {_short(place[key])}")
        keep(found)

    def steps(system):
        run(found.steps, system.name, f"step of {system.name}", lambda: fitting(system, of_device))

    def agrees(system):
        title = f"agreement of {system.name}"
        one_row = f"Trainer.tokens_per_step = {4096 // of_device.small.lengths}"
        run(
            found.agreement,
            system.name,
            title,
            lambda: agreement.compare(small[system.name], one_row),
        )

    first = [system for system in published if system.name in rows_of_table.FIRST]
    rest = [system for system in published if system not in first]
    for system in first:
        steps(system)
    for system in _by_form(first):
        steps(system)
        found.agreement[system.name] = {"error": ""}
    written = rows_of_table.systems(of_device.published, [DECODED], of_device.bindings)[0]
    for rows in BATCHES:

        def write(rows=rows):
            timed = decoding.time_decoding(written.experiment(), rows, of_device.written)
            return {**timed._asdict(), "tokens_per_second": timed.tokens_per_second}

        run(found.decoding, rows, f"decoding, batch {rows}", write)
    for work, group in ((agrees, first), (steps, rest), (agrees, rest)):
        for system in group:
            work(system)
    return found


def _by_form(systems):
    """Returns the systems of `BY_FORM` that are measured with each form of attention."""
    return [
        System(
            f"{system.name}, {form} attention, {f'dropout of {drops}' if drops else 'no dropout'}",
            [*system.bindings, *_lines(form, drops)],
        )
        for form, drops in FORMS.get(jax.default_backend(), ())
        for system in systems
        if system.name in BY_FORM
    ]


def _lines(form, drops):
    yield f'BlockRecurrentTransformer.attention_form = "{form}"'
    if drops:
        yield f'BlockRecurrentTransformer.attention_dropout = "{drops}"'
    else:
        yield "BlockRecurrentTransformer.dropout = 0.0"


def _attempt(work) -> dict[str, Any]:
    try:
        return work()
    except (RuntimeError, ValueError) as error:
        return {"error": f"failed: {str(error).strip().splitlines()[0][:200]}"}


def fitting(system: System, of_device: Plan) -> dict[str, Any]:
    """Times a step with the largest batch that fits, found by halving."""
    rows = of_device.rows
    while True:
        tokens = rows * of_device.tokens * jax.device_count()
        experiment = system.experiment(f"Trainer.tokens_per_step = {tokens}")
        try:
            return step_figures(time_step(experiment, of_device.seconds), experiment)
        except RuntimeError as error:
            if rows == 1 or not out_of_memory(error):
                raise
        rows //= 2


def step_figures(timed: Timed, experiment: Any) -> dict[str, Any]:
    """Returns a timed step with tokens per second and, for known devices, MFU."""
    tokens_per_second = timed.tokens / timed.seconds
    figures = {**timed._asdict(), "tokens_per_second": tokens_per_second}
    if peak := device_peak():
        flops = 3 * experiment.model.flops_per_token() * tokens_per_second
        figures["mfu"] = flops / (peak * jax.device_count())
    return figures


def _short(figures):
    if "error" in figures:
        return figures["error"]
    if "agrees" in figures:
        return "agrees" if figures["agrees"] else "DIFFERS"
    return f"{1000 * figures['seconds']:.1f} ms, compiled in {figures['compile_seconds']:.0f} s"


def with_ratios(steps: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    base = steps.get(BASELINE, {})
    if "seconds" not in base:
        return steps
    per_token = base["seconds"] / base["tokens"]

    def ratio(row):
        return {"ratio": row["seconds"] / row["tokens"] / per_token} if "seconds" in row else {}

    return {name: ratio(row) | row for name, row in steps.items()}


def table(found: Measured, machine: str) -> str:
    lines = [
        machine,
        "",
        "| system | ratio | step ms | tokens/s | MFU | peak GiB | rows | compile s | float32, "
        "against the CPU |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    for name, row in with_ratios(found.steps).items():
        agreed = found.agreement.get(name, {"error": NO_TIME})
        cells = [name]
        if "error" in row:
            cells += [row["error"], *[""] * 6]
        else:
            peak = row["peak_bytes"]
            cells += [
                f"{row['ratio']:.3f}" if "ratio" in row else "",
                f"{1000 * row['seconds']:.1f}",
                f"{row['tokens_per_second']:,.0f}",
                f"{row['mfu']:.1%}" if "mfu" in row else "",
                f"{peak / 2**30:.2f}" if peak else "",
                str(row["rows"]),
                f"{row['compile_seconds']:.0f}",
            ]
        lines.append(f"| {' | '.join([*cells, _agreement(agreed)])} |")
    for rows, row in found.decoding.items():
        text = row.get("error") or (
            f"{1000 * row['seconds']:.2f} ms a token, {row['tokens_per_second']:,.0f} tokens/s"
        )
        lines.append(f"\nDecoding with {DECODED}, batch {rows}: {text}.")
    return "\n".join(lines) + "\n"


def _agreement(found):
    if "error" in found:
        return found["error"]
    apart = ", ".join(
        f"{name} {value:.0e}" for name, value in found.items() if isinstance(value, float)
    )
    return f"{'agrees' if found['agrees'] else 'DIFFERS'} ({apart})"


def main() -> None:
    try:
        device = jax.devices()[0]
    except RuntimeError as error:
        raise ValueError(
            f"JAX finds no device that works: {str(error).splitlines()[0]} Install the extra gpu "
            "or tpu, or set JAX_PLATFORMS=cpu for a tiny run."
        ) from error
    machine = f"{jax.device_count()} x {device.device_kind}, jax {jax.__version__}"
    if device.platform == "cpu":
        machine += "; tiny systems: a CPU is no accelerator, and these figures say nothing of one"
    print(machine, flush=True)
    begun = time.monotonic()
    file = Path(FLAGS.figures)
    heads = {
        "device": device.device_kind,
        "devices": jax.device_count(),
        "jax": jax.__version__,
        "baseline": BASELINE,
    }

    def keep(found):
        content = {
            **heads,
            "configs": [{"name": name} | row for name, row in with_ratios(found.steps).items()],
            "agreement": found.agreement,
            "decoding": [{"rows": rows} | row for rows, row in found.decoding.items()],
        }
        replace_file(file.parent, file.name, json.dumps(content, indent=1).encode())
        text = table(found, machine)
        replace_file(file.parent, file.with_suffix(".md").name, text.encode())

    report = functools.partial(print, flush=True)
    found = measure(FLAGS.systems, FLAGS.minutes, report, earlier(file, heads), keep)
    keep(found)
    print(f"\n{table(found, machine)}\nMeasured in {(time.monotonic() - begun) / 60:.1f} minutes.")
    print(f"Written to {file} and {file.with_suffix('.md')}; the same command measures the rest.")


def earlier(file: Path, heads: dict[str, Any]) -> Measured:
    """Returns the figures in a file; refuses those of another device or version of JAX."""
    if not file.exists():
        return Measured({}, {}, {})
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        theirs = {name: content[name] for name in heads}
    except (ValueError, LookupError, TypeError):
        raise ValueError(
            f"{file} was not written by this command: name another --figures."
        ) from None
    if theirs != heads:
        raise ValueError(f"{file} is of {theirs}, and this is {heads}: name another --figures.")
    steps = {row.pop("name"): row for row in content["configs"]}
    decoded = {row.pop("rows"): row for row in content["decoding"]}
    return Measured(steps, content["agreement"], decoded)


if __name__ == "__main__":
    command_line.run(main)
