r"""Runs a list of experiments at one scale, on one corpus, with one budget, and compares them.

    brt sweep --workdir=sweeps/table_1 --sweep=configs/sweeps/table_1.txt --scale=small \
        --text=books --tokens=20e6 --seeds=0,1,2

    brt sweep --workdir=sweeps/gates --gin_file=configs/quickstart.gin --processes=2 \
        --grid="RecurrentCell.gate=fixed,lstm RecurrentCell.num_states=4,16"

A line of a sweep has configs joined by `+`, and bindings without spaces:
`systems/rec_fixed_skip.gin+recipes/arxiv.gin RecurrentCell.num_states=128`; several values of a
binding, separated by commas, are a grid. --scale divides the model's dimensions, those bound in
lines too; bindings of the command line come last, and no scale divides them. Each run trains on
--tokens (twice as many if its line binds twice the steps), or for its own steps; a warm-up longer
than the run is shortened to a tenth. Lines that differ in their evaluation only are trained once.

The same command continues after a stop; other flags for the folder are refused. On a cluster:

    brt sweep --print_commands ... >commands.txt
    sbatch --array=1-$(wc -l <commands.txt) \
        --wrap='eval "$(sed -n ${SLURM_ARRAY_TASK_ID}p commands.txt)"'

--collect with the same flags writes the tables and archives of the finished runs. More:
docs/reproduction.md.
"""

import contextlib
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from brt import command_line, config
from brt.benchmarks.topologies import use_no_device
from brt.bindings.read_bindings import differences
from brt.data.extras import MissingExtra
from brt.data.text_flag import CONFIG, define_text, text_bindings
from brt.experiment import Experiment
from brt.host.progress import reported
from brt.reporting.collect import collect
from brt.reporting.drawing.plots import image
from brt.reporting.drawing.table import Table
from brt.reporting.gin_text import read_gin, read_gin_file, write_gin
from brt.reporting.papers.fill import paper_tables
from brt.reporting.papers.published_tables import PAPERS
from brt.reporting.runs import open_runs
from brt.reporting.step_times import read_step_times
from brt.reporting.sweep_folder import CONFIGS, RUNS, SEED, SWEEP_FILE, Sweep, sweep_json
from brt.reporting.sweep_tables import entry_plot, entry_table
from brt.run.data import check_data
from brt.storage.replaced_files import replace_file
from brt.storage.shipped import configs_root
from brt.sweeps.entries import SweepEntry, read_sweep
from brt.sweeps.running import SweepRun, command, device_count, run_all, runs_of, shell_line
from brt.sweeps.scales import SCALES, SweepError
from brt.training.over_time.mesh import divided
from brt.training.sharding import abstract_mesh

FLAGS = flags.FLAGS
define_text()
flags.DEFINE_string("sweep", None, "A file with one config and its bindings a line.")
flags.DEFINE_string("grid", None, "A grid of --gin_file in place of a sweep: NAME=VALUE,VALUE ...")
flags.DEFINE_integer("processes", 1, "Runs at once, each on one GPU, if there are any.", 1)
flags.DEFINE_bool("paper", False, "Also print the published tables with rows for these runs.")
flags.DEFINE_enum("scale", "paper", list(SCALES), "What the models' dimensions are divided by.")
flags.DEFINE_string("corpus", None, "A gin file whose corpus replaces that of the configs.")
flags.DEFINE_float("tokens", None, "Tokens each run trains on; None: its config's steps.", 1)
flags.DEFINE_integer("tokens_per_step", None, "Of every run; None for the first entry's, scaled.")
flags.DEFINE_list("seeds", ["0"], "Each entry is run once with each.")
flags.DEFINE_string("split", "validation", "What is evaluated in the end.")
flags.DEFINE_string("archive", None, "A folder for the records of each finished run.")
flags.DEFINE_bool("print_commands", False, "Print a command for each missing run, and run none.")
flags.DEFINE_bool("collect", False, "Run nothing; tables and archives of what is finished.")
flags.DEFINE_integer("step_time_rounds", 0, "Also time so many steps of each entry, for Table 1.")


def main() -> None:
    check_flags()
    folder = Path(FLAGS.workdir)
    entries = flagged_entries()
    for note in dict.fromkeys(note for entry in entries for note in entry.notes):
        print(note, file=sys.stderr)
    for entry in entries:
        check_entry(folder, entry)
    files = [write_entry(folder, entry) for entry in entries]
    sweep = Sweep(sweep_title(), FLAGS.split, {entry.name: entry.label for entry in entries})
    replace_file(folder, SWEEP_FILE, sweep_json(sweep))
    use_no_device()  # its runs, other processes, need all devices
    elsewhere = FLAGS.print_commands or FLAGS.collect
    check_configs(files, None if elsewhere else device_count(FLAGS.processes))
    passed = command_line.flags_of_machine()
    runs = runs_of(folder, entries, files, FLAGS.seeds, FLAGS.split, passed)
    missing = [run for run in runs if not run.evaluated()]
    if FLAGS.print_commands:
        print_commands(missing)
        print(f"{len(missing)} of {len(runs)} runs are to be done.", file=sys.stderr)
        return
    if FLAGS.collect:
        for run in missing:
            print(f"Not finished: {run.entry.name}, seed {run.seed}", file=sys.stderr)
        runs = [run for run in runs if run not in missing]
    run_all(runs, FLAGS.processes, FLAGS.archive)
    step_times = folder / "step_times.json"
    if FLAGS.step_time_rounds and not step_times.exists() and not FLAGS.collect:
        timed = [f"--configs={','.join(map(str, files))}", f"--rounds={FLAGS.step_time_rounds}"]
        command("brt.benchmark", *timed, f"--json={step_times}", *passed)
    if not runs:
        print("No run is finished yet.")
        return
    for table in write_tables(folder, sweep, runs, step_times):
        print(f"\n{table.as_markdown()}")
    names = [name for name in ("tables.md", "sweep.png") if (folder / name).exists()]
    print(f"\nWritten to {folder}: {', '.join(names)}. To look at it:")
    print(f"python -m brt.report {shlex.quote(str(folder))}")


def check_flags() -> None:
    if FLAGS.workdir is None:
        raise SweepError("--workdir is missing: name a folder for the runs and their table.")
    if (FLAGS.sweep is None) == (FLAGS.grid is None) or bool(FLAGS.grid) != bool(FLAGS.gin_file):
        raise SweepError("Name the runs: --sweep=FILE, or --gin_file=CONFIG with --grid.")
    if FLAGS.print_commands and FLAGS.collect:
        raise SweepError("--print_commands says what is to be run, --collect what was: give one.")


def flagged_entries() -> list[SweepEntry]:
    corpus, bindings = FLAGS.corpus, FLAGS.gin_bindings
    if FLAGS.text:
        corpus = corpus or configs_root() / CONFIG
        bindings = [*text_bindings(FLAGS.text), *bindings]
    return read_sweep(
        FLAGS.sweep or "--grid",
        SCALES[FLAGS.scale],
        corpus=corpus,
        bindings=bindings,
        tokens=FLAGS.tokens,
        tokens_per_step=FLAGS.tokens_per_step,
        lines=[f"{'+'.join(FLAGS.gin_file)} {FLAGS.grid}"] if FLAGS.grid else None,
        search_paths=FLAGS.gin_search_paths,
    )


def sweep_title() -> str:
    scale = "" if FLAGS.scale == "paper" else f", at the scale {FLAGS.scale}"
    grid = re.sub(r"[\w.]*\.(?=\w+=)", "", FLAGS.grid or "")  # without the owners of parameters
    return f"Entries of {FLAGS.sweep or grid}{scale}"


def print_commands(missing: Sequence[SweepRun]) -> None:
    lines: dict[tuple[str, str], list[list[str]]] = {}
    for run in missing:
        run.begin()
        lines.setdefault((run.entry.trained_by, run.seed), []).extend(run.commands())
    for line in lines.values():
        print(shell_line(line))


def check_entry(folder: Path, entry: SweepEntry) -> None:
    """Refuses an entry whose config has changed since its training."""
    file = entry_file(folder, entry)
    if not file.exists() or not any((folder / RUNS).glob(f"{entry.trained_by}{SEED}*/config.gin")):
        return
    old, new = (
        {name: repr(value) for name, value in settings.items()}
        for settings in (read_gin_file(file), read_gin(write_gin(entry.settings)))
    )
    if lines := differences(old, new):
        raise SweepError(
            f"{file} is an entry of another sweep, and was trained with: name a new --workdir, or "
            "give the flags it was begun with. What differs:\n" + "\n".join(lines)
        )


def check_configs(files: Sequence[Path], devices: int | None) -> None:
    """Refuses entries that cannot be trained or evaluated on so many devices (None: elsewhere)."""
    for file in reported(files, "checking entries", len(files)):
        config.parse([file], allow_imports=FLAGS.allow_imports)
        try:
            experiment = Experiment.from_gin()
            if devices:
                trainer = experiment.trainer
                mesh = abstract_mesh(trainer.mesh, devices)
                experiment.check_mesh(divided(trainer, experiment.model, mesh))
                check_data(experiment)
        except ValueError as error:
            raise SweepError(f"{file}: {error}") from error


def write_entry(folder: Path, entry: SweepEntry) -> Path:
    file = entry_file(folder, entry)
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_file(file.parent, file.name, write_gin(entry.settings, entry.imports).encode())
    return file


def entry_file(folder: Path, entry: SweepEntry) -> Path:
    return folder / CONFIGS / f"{entry.name}.gin"


def write_tables(
    folder: Path, sweep: Sweep, runs: Sequence[SweepRun], step_times: Path
) -> list[Table]:
    """Writes tables.md and sweep.png; returns the tables."""
    times = read_step_times([str(step_times)] if step_times.exists() else [])
    opened = open_runs([run.workdir for run in runs], FLAGS.allow_imports)
    entries = collect(opened, sweep)
    tables = [entry_table(entries, sweep.title, sweep.split)]
    for paper in PAPERS if FLAGS.paper else ():
        filled = paper_tables(paper, entries, times).values()
        tables += [table for table in filled if table.has_measurements]
    with contextlib.suppress(MissingExtra):
        replace_file(folder, "sweep.png", image(entry_plot(entries, sweep.split)))
    shown = "\n".join(table.as_markdown() for table in tables)
    replace_file(folder, "tables.md", shown.encode())
    return tables


if __name__ == "__main__":
    command_line.run(main)
