"""Measures a GPU or TPU in a few minutes: steps, agreement with the CPU, decoding.

The most important measurements come first. The same command continues after a stop: measurements
in its file are not repeated. On a CPU everything is tiny, to test the script.
"""

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
from absl import flags
from accelerator import agreement
from accelerator.systems import BASELINE, FIRST, System, systems, time_decoding, time_step

from brt import command_line
from brt.reporting.drawing.table import plain_table
from brt.storage.replaced_files import replace_file
from brt.sweeps.scales import SCALES

FLAGS = flags.FLAGS
flags.DEFINE_list("systems", [], "Systems of Table 1 to measure; all by default.")
flags.DEFINE_string("figures", "accelerator.json", "The file to write; a table goes beside it.")
flags.DEFINE_float("minutes", 10, "How long measuring takes, at most about.", 0)

STEPS, AGREEMENT, DECODING = KINDS = "steps", "agreement", "decoding"
DECODED = "pg19_rec_fixed_skip"
BATCHES = (1, 8, 64)
NO_TIME = "not run: no time left"
MISSING = {"error": ""}
STEP_SECONDS, WRITTEN, ROW_TOKENS = 5.0, 64, 4096
ROW_BYTES = 4 * 2**30
"""Device memory per batch element, for the first guess of the batch."""
MOST_ROWS = 32
TINY = ("BlockRecurrentTransformer.vocabulary_size = 256",)
BFLOAT16 = ('BlockRecurrentTransformer.activation_dtype = "bfloat16"',)
DROPLESS = "BlockRecurrentTransformer.dropout = 0.0"
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


class Measurement(NamedTuple):
    """A measurement whose figures get a name among those of a kind of `KINDS`."""

    kind: str
    name: str
    work: Callable[[], dict[str, Any]]


def measurements(names: Sequence[str] = ()) -> Iterator[Measurement]:
    """Yields steps, decoding and agreement of the first systems, then of the others.

    names: of configs; () for all of Table 1.
    """
    published, small = SCALES["paper"], SCALES["small"]._replace(layers=6)
    bindings, dropless = BFLOAT16, [DROPLESS]
    seconds, written, rows = STEP_SECONDS, WRITTEN, first_rows()
    if jax.default_backend() == "cpu":
        published = small = SCALES["tiny"]
        bindings, dropless = TINY, [DROPLESS, *TINY]
        seconds, written, rows = 0, 4, 1
    tokens, one_row = ROW_TOKENS // published.lengths, ROW_TOKENS // small.lengths
    chosen = systems(published, names, bindings)
    first = [system for system in chosen if system.name in FIRST]
    rest = [system for system in chosen if system not in first]
    of_name = {system.name: system for system in systems(small, names, dropless)}

    def steps(group):
        for system in group:
            yield Measurement(STEPS, system.name, partial(fitting, system, rows, tokens, seconds))

    def agrees(group):
        for system in group:
            inputs = of_name[system.name], f"Trainer.tokens_per_step = {one_row}"
            yield Measurement(AGREEMENT, system.name, partial(agreement.compare, *inputs))

    def decode(rows):
        (system,) = systems(published, [DECODED], bindings)
        return time_decoding(system.experiment(), rows, written)

    yield from steps([*first, *_by_form(first)])
    for number in BATCHES:
        yield Measurement(DECODING, str(number), partial(decode, number))
    yield from agrees(first)
    yield from steps(rest)
    yield from agrees(rest)


def first_rows() -> int:
    """Returns a power of two of batch elements of which a device may have the memory."""
    room = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit", 16 * 2**30)
    return 2 ** int(math.log2(max(min(room // ROW_BYTES, MOST_ROWS), 1)))


def _by_form(group):
    """Returns the systems of `BY_FORM` that are measured with each form of attention."""
    return [
        System(
            f"{system.name}, {form} attention, {f'dropout of {drops}' if drops else 'no dropout'}",
            [
                *system.bindings,
                f'BlockRecurrentTransformer.attention_form = "{form}"',
                f'BlockRecurrentTransformer.attention_dropout = "{drops}"' if drops else DROPLESS,
            ],
        )
        for form, drops in FORMS.get(jax.default_backend(), ())
        for system in group
        if system.name in BY_FORM
    ]


def fitting(system: System, rows: int, tokens: int, seconds: float) -> dict[str, Any]:
    """Times a step with the largest batch that fits, found by halving.

    rows, tokens: batch elements of a device at first, and tokens of each.
    """
    while True:
        size = rows * tokens * jax.device_count()
        experiment = system.experiment(f"Trainer.tokens_per_step = {size}")
        try:
            return time_step(experiment, seconds)
        except RuntimeError as error:
            text = str(error)
            full = "RESOURCE_EXHAUSTED" in text or "out of memory" in text.lower()
            if rows == 1 or not full:
                raise
        rows //= 2


def measure(
    planned: Iterable[Measurement],
    figures: dict[str, dict[str, Any]],
    minutes: float,
    keep: Callable[[], None] = lambda: None,
) -> None:
    """Makes measurements that have failed or are missing.

    Args:
        figures: by kind and name; an `error` explains missing ones.
        minutes: after which nothing new starts.
        keep: called after each measurement.
    """
    until, longest = time.monotonic() + 60 * minutes, 0.0
    for kind, name, work in planned:
        if "error" not in figures[kind].get(name, MISSING):
            continue
        begun = time.monotonic()
        found: dict[str, Any] = {"error": NO_TIME}
        if begun + longest <= until:
            try:
                found = work()
            except (RuntimeError, ValueError) as error:
                reason = str(error).strip().split("\n")[0][:200]
                found = {"error": f"failed: {reason}"}
            longest = max(longest, time.monotonic() - begun)
        figures[kind][name] = found
        print(f"{kind}, {name}: {found.get('error') or _short(found)}", flush=True)
        keep()


def _short(found):
    if "agrees" in found:
        return _agreement(found)
    return f"{1000 * found['step_seconds']:.2f} ms, compiled in {found['compile_seconds']:.0f} s"


def _agreement(found):
    apart = ", ".join(f"{name} {x:.0e}" for name, x in found.items() if isinstance(x, float))
    return f"{'agrees' if found['agrees'] else 'DIFFERS'} ({apart})"


def tables(figures: dict[str, dict[str, Any]], machine: str) -> str:
    """Returns the figures as Markdown; ratios are of the time of a token to `BASELINE`'s."""
    base = figures[STEPS].get(BASELINE, {}).get("tokens_per_second")
    steps = []
    for name, row in figures[STEPS].items():
        agreed = figures[AGREEMENT].get(name, MISSING)
        cells = [row.get("error")]
        if "error" not in row:
            cells = [
                f"{base / row['tokens_per_second']:.3f}" if base else "",
                f"{1000 * row['step_seconds']:.1f}",
                f"{row['tokens_per_second']:,.0f}",
                f"{row['mfu']:.1%}" if "mfu" in row else "",
                f"{row['peak_bytes'] / 2**30:.2f}" if "peak_bytes" in row else "",
                row["rows"],
                f"{row['compile_seconds']:.0f}",
            ]
        cells += [""] * (7 - len(cells))
        steps.append([name, *cells, agreed["error"] if "error" in agreed else _agreement(agreed)])
    decoding = [
        [rows, row["error"], ""]
        if "error" in row
        else [rows, f"{1000 * row['step_seconds']:.2f}", f"{row['tokens_per_second']:,.0f}"]
        for rows, row in figures[DECODING].items()
    ]
    titles = "system", "ratio", "step ms", "tokens/s", "MFU", "peak GiB", "rows", "compile s"
    agrees = "float32, against the CPU"
    first = plain_table(STEPS, f"Steps on {machine}", "", [*titles, agrees], steps)
    of_decoding = f"Decoding with {DECODED}", "", ["batch", "ms a token", "tokens/s"], decoding
    return f"{first.as_markdown()}\n{plain_table(DECODING, *of_decoding).as_markdown()}"


def main() -> None:
    try:
        device = jax.devices()[0]
    except RuntimeError as error:
        raise ValueError(
            f"JAX finds no device that works: {str(error).splitlines()[0]} Install the extra gpu "
            "or tpu, or set JAX_PLATFORMS=cpu for a tiny run."
        ) from error
    heads = {"device": device.device_kind, "devices": jax.device_count(), "jax": jax.__version__}
    machine = f"{jax.device_count()} x {device.device_kind}, jax {jax.__version__}"
    if device.platform == "cpu":
        machine += "; tiny systems: a CPU is no accelerator, and these figures say nothing of one"
    print(machine, flush=True)
    begun = time.monotonic()
    file = Path(FLAGS.figures)
    figures = earlier(file, heads)

    def keep():
        replace_file(file.parent, file.name, json.dumps(heads | figures, indent=1).encode())
        text = tables(figures, machine)
        replace_file(file.parent, file.with_suffix(".md").name, text.encode())

    measure(measurements(FLAGS.systems), figures, FLAGS.minutes, keep)
    print(f"\n{tables(figures, machine)}")
    print(f"Measured in {(time.monotonic() - begun) / 60:.1f} minutes.")
    print(f"Written to {file} and {file.with_suffix('.md')}; the same command measures the rest.")


def earlier(file: Path, heads: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns the figures in a file; refuses those of another device or version of JAX."""
    if not file.exists():
        return {kind: {} for kind in KINDS}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        theirs, figures = ({name: content[name] for name in names} for names in (heads, KINDS))
    except (ValueError, LookupError, TypeError):
        raise ValueError(
            f"{file} was not written by this version of the command: name another --figures."
        ) from None
    if theirs != heads:
        raise ValueError(f"{file} is of {theirs}, and this is {heads}: name another --figures.")
    return figures


if __name__ == "__main__":
    command_line.run(main)
