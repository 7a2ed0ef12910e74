r"""Runs a list of experiments at one scale, on one corpus, with one budget, and writes the tables.

    python scripts/ladder.py --workdir=ladder --sweep=configs/sweeps/table_1.txt --scale=small \
        --corpus=configs/corpora/text.gin --gin.TextFiles.path='"books/{split}"' \
        --tokens=20e6 --seeds=0,1,2

    python scripts/ladder.py --workdir=ladder --gin_file=configs/quickstart.gin --processes=2 \
        --grid="RecurrentCell.gate=fixed,lstm RecurrentCell.num_states=4,16"

A line of a sweep has configs joined by `+`, and bindings without spaces:
`systems/rec_fixed_skip.gin+recipes/arxiv.gin RecurrentCell.num_states=128`; several values of a
binding, separated by commas, are a grid. --processes runs so many at once, spread over the GPUs;
several on one GPU are for small models and CUDA's multi-process service (eight models of 28 million
parameters took 2.7 times as long as one after the other). --paper adds the published tables that
have a row for these runs. --scale divides the model's dimensions, --corpus replaces the config's
corpus, and each run trains on --tokens (twice as many if its line binds twice the steps), or for
its own steps. A warm-up longer than the run becomes a tenth of it, with a note. Lines that differ
in their evaluation only are trained once. Bindings of the command line come last.

The same command continues after a stop; other flags in the same folder are refused.
--archive=FOLDER keeps the records of finished runs for `python docs/results/build.py`. On a
cluster:

    python scripts/ladder.py --print_commands ... >commands.txt
    sbatch --array=1-$(wc -l <commands.txt) \
        --wrap='eval "$(sed -n ${SLURM_ARRAY_TASK_ID}p commands.txt)"'

--collect with the same flags writes the tables and archives of the finished runs.
"""

import contextlib
import itertools
import json
import os
import queue
import shlex
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import numpy as np
from absl import flags
from sweeps import SCALES, LadderError, SweepEntry, read_sweep

from brt import command_line, config
from brt.benchmarks.topologies import use_no_device
from brt.bindings.reading import differences
from brt.data.extras import MissingExtra
from brt.experiment import Experiment
from brt.progress import Progress
from brt.reporting.archive import ENDING, pack
from brt.reporting.collect import Group, collect
from brt.reporting.drawing.plots import Line, Plot, svg
from brt.reporting.drawing.table import Table
from brt.reporting.gin_text import read_gin, read_gin_file, write_gin
from brt.reporting.papers.fill import paper_tables
from brt.reporting.papers.form import Quantity
from brt.reporting.papers.reading import PAPERS
from brt.reporting.run_files import read_evaluation
from brt.reporting.run_tables import entry_table
from brt.reporting.runs import STANDS_FOR_FILE, open_runs
from brt.reporting.step_times import read_step_times
from brt.run_data import check_data
from brt.storage.shipped import configs_root
from brt.text_flag import CONFIG, define_text, text_bindings
from brt.training.checkpoints.policy import recorded_best, stopped_early
from brt.training.records.run_folder import read_metrics
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


CHECKPOINTS = "checkpoints"
"""Folder of a run that holds its checkpoints."""


def run_ladder() -> None:
    if FLAGS.workdir is None:
        raise LadderError("--workdir is missing: name a folder for the runs and their table.")
    if (FLAGS.sweep is None) == (FLAGS.grid is None) or bool(FLAGS.grid) != bool(FLAGS.gin_file):
        raise LadderError("Name the runs: --sweep=FILE, or --gin_file=CONFIG with --grid.")
    if FLAGS.print_commands and FLAGS.collect:
        raise LadderError("--print_commands says what is to be run, --collect what was: give one.")
    folder = Path(FLAGS.workdir)
    corpus, bindings = FLAGS.corpus, FLAGS.gin_bindings
    if FLAGS.text:
        corpus = corpus or configs_root() / CONFIG
        bindings = [*text_bindings(FLAGS.text), *bindings]
    entries = read_sweep(
        FLAGS.sweep or "--grid",
        SCALES[FLAGS.scale],
        corpus=corpus,
        bindings=bindings,
        tokens=FLAGS.tokens,
        tokens_per_step=FLAGS.tokens_per_step,
        lines=[f"{'+'.join(FLAGS.gin_file)} {FLAGS.grid}"] if FLAGS.grid else None,
    )
    for note in dict.fromkeys(entry.note for entry in entries if entry.note):
        print(note, file=sys.stderr)
    for entry in entries:
        check_entry(folder, entry)
    files = [write_entry(folder, entry) for entry in entries]
    use_no_device()  # the runs, which are processes of their own, need all of them
    elsewhere = FLAGS.print_commands or FLAGS.collect
    check_configs(files, None if elsewhere else device_count())
    runs = [
        (entry, file, seed, folder / "runs" / f"{entry.name}-seed{seed}")
        for seed in FLAGS.seeds  # seed by seed, so that a table stands early
        for entry, file in zip(entries, files)
    ]
    missing = [run for run in runs if not evaluated(run[3], run[0])]
    if FLAGS.print_commands:
        lines: dict[tuple[str, str], list[list[str]]] = {}
        for entry, file, seed, workdir in missing:
            begin(workdir, entry, seed)
            lines.setdefault((entry.trained_by, seed), []).extend(commands(file, seed, workdir))
        for line in lines.values():
            print(shell_line(line))
        print(f"{len(missing)} of {len(runs)} runs are to be done.", file=sys.stderr)
        return
    if FLAGS.collect:
        for entry, _, seed, _ in missing:
            print(f"Not finished: {entry.name}, seed {seed}", file=sys.stderr)
        runs = [run for run in runs if run not in missing]
    run_all(runs)
    step_times = folder / "step_times.json"
    if FLAGS.step_time_rounds and not step_times.exists() and not FLAGS.collect:
        timed = [f"--configs={','.join(map(str, files))}", f"--rounds={FLAGS.step_time_rounds}"]
        command("brt.benchmark", *timed, f"--json={step_times}")
    # Entries of one config are named by their changes.
    one = len({entry.paper["config"] for entry in entries}) == 1
    changes = {e.name: e.changes or "as configured" for e in entries if one}
    for table in write_tables(folder, [workdir for *_, workdir in runs], step_times, changes):
        print(f"\n{table.as_markdown()}")
    names = [name for name in ("tables.md", "tables.json", "sweep.svg") if (folder / name).exists()]
    print(f"\nWritten to {folder}: {', '.join(names)}. To look at it:")
    print(f"python -m brt.report {folder}/runs/*")


Run = tuple[SweepEntry, Path, str, Path]
"""Entry, its config, a seed, and the run folder."""


def run_all(runs: Sequence[Run]) -> None:
    """Runs what is unfinished, --processes at a time: those that train, then their evaluations."""
    devices: queue.Queue[dict[str, str]] = queue.Queue()
    gpus = visible_gpus() if FLAGS.processes > 1 else []
    # On a shared GPU JAX would give all memory to the first run.
    shared = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} if len(gpus) < FLAGS.processes else {}
    for gpu in itertools.islice(itertools.cycle(gpus or [None]), FLAGS.processes):
        devices.put(shared | {"CUDA_VISIBLE_DEVICES": gpu} if gpu else {})
    ordered = sorted(enumerate(runs, 1), key=lambda pair: pair[1][0].trained_by != pair[1][0].name)
    waves = itertools.groupby(ordered, lambda pair: pair[1][0].trained_by != pair[1][0].name)
    failed = threading.Event()

    def run_unless_failed(number: int, run: Run) -> None:
        if failed.is_set():  # the next run may fail for the same reason
            return
        try:
            run_one(run, f"{number} of {len(runs)}", devices)
        except BaseException:
            failed.set()
            raise

    for _, wave in waves:
        with ThreadPoolExecutor(FLAGS.processes) as pool:
            started = [pool.submit(run_unless_failed, *pair) for pair in wave]
            try:
                for one in as_completed(started):
                    one.result()
            finally:
                pool.shutdown(cancel_futures=True)


def run_one(run: Run, number: str, devices: queue.Queue[dict[str, str]]) -> None:
    """Trains and evaluates a run; of several at once the output goes to log.txt of its folder."""
    entry, file, seed, workdir = run
    print(f"[{number}] {entry.name}, seed {seed}", flush=True)
    if not evaluated(workdir, entry):
        begin(workdir, entry, seed)
        variables = devices.get()
        try:
            for module, *arguments in commands(file, seed, workdir):
                if FLAGS.processes == 1:
                    command(module, *arguments)
                else:
                    command(module, *arguments, log=workdir / "log.txt", variables=variables)
        finally:
            devices.put(variables)
    if FLAGS.archive:
        pack(workdir, Path(FLAGS.archive) / f"{workdir.name}{ENDING}")


def visible_gpus() -> list[str]:
    """Returns the numbers of the GPUs that a run may use; none on other machines."""
    ask = "import jax; print(*[d.id for d in jax.devices() if d.platform == 'gpu'])"
    found = subprocess.run(
        [sys.executable, "-c", ask], stdout=subprocess.PIPE, check=True, text=True
    )
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = allowed.split(",") if allowed else None
    return [names[int(n)] if names else n for n in found.stdout.split()]


def check_entry(folder: Path, entry: SweepEntry) -> None:
    """Refuses an entry whose config differs from the one it was trained with."""
    file = entry_file(folder, entry)
    text = write_gin(entry.settings)
    begun = any((folder / "runs").glob(f"{entry.trained_by}-seed*/config.gin"))
    if not begun or not file.exists() or file.read_text(encoding="utf-8") == text:
        return
    old, new = (
        {name: repr(value) for name, value in settings.items()}
        for settings in (read_gin_file(file), read_gin(text))
    )
    raise LadderError(
        f"{file} is an entry of another ladder, and was trained with: name a new --workdir, or "
        f"give "
        "the flags it was begun with. What differs:\n" + "\n".join(differences(old, new))
    )


def device_count() -> int:
    ask = "import jax; print(jax.device_count())"
    found = subprocess.run([sys.executable, "-c", ask], stdout=subprocess.PIPE, check=True)
    return int(found.stdout.split()[-1])


def check_configs(files: Sequence[Path], devices: int | None) -> None:
    """Refuses entries that cannot be trained or evaluated on so many devices (None: elsewhere)."""
    progress = Progress("checking entries", len(files))
    try:
        for number, file in enumerate(files, 1):
            config.parse([file])
            try:
                experiment = Experiment.from_gin()
                if devices:
                    mesh = abstract_mesh(*experiment.trainer.mesh, devices)
                    experiment.check_mesh(mesh)
                    check_data(experiment)
            except ValueError as error:
                raise LadderError(f"{file}: {error}") from error
            progress.update(number)
    finally:
        progress.close()


def write_entry(folder: Path, entry: SweepEntry) -> Path:
    file = entry_file(folder, entry)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, write_gin(entry.settings))
    return file


def entry_file(folder: Path, entry: SweepEntry) -> Path:
    return folder / "configs" / f"{entry.name}.gin"


def evaluated(workdir: Path, entry: SweepEntry) -> bool:
    """Returns whether a run has ended and its checkpoint has been evaluated."""
    try:
        step = read_evaluation(workdir / f"evaluation_{FLAGS.split}.json", []).get("step", -1)
    except (OSError, ValueError):
        return False
    if step >= entry.settings["Trainer.steps"]:
        return True
    records = read_metrics(str(workdir))
    last = max((record["step"] for record in records), default=-1)
    ended = stopped_early(records) or last >= entry.settings["Trainer.steps"]
    best, _ = recorded_best(records) or (last, None)
    return ended and step == best


def begin(workdir: Path, entry: SweepEntry, seed: str) -> None:
    workdir.mkdir(parents=True, exist_ok=True)
    write_whole(workdir / STANDS_FOR_FILE, json.dumps(entry.paper, indent=1))
    if entry.trained_by != entry.name and not os.path.lexists(workdir / CHECKPOINTS):
        for name in (CHECKPOINTS, "metrics.jsonl"):
            (workdir / name).symlink_to(Path("..", f"{entry.trained_by}-seed{seed}", name))
    if (workdir / CHECKPOINTS).is_symlink():
        text = write_gin(entry.settings | {"Trainer.seed": int(seed)})
        write_whole(workdir / "config.gin", text)


def commands(file: Path, seed: str, workdir: Path) -> list[list[str]]:
    """Returns modules and flags of a run: training (if it trains) and evaluation."""
    train = [f"--gin_file={file}", f"--workdir={workdir}", f"--gin.Trainer.seed={seed}"]
    split = f'--gin.Evaluation.split="{FLAGS.split}"'
    evaluate = ["brt.evaluate", f"--workdir={workdir}", split]
    if (workdir / CHECKPOINTS).is_symlink():
        return [evaluate]
    return [["brt.train", *train], evaluate]


def shell_line(commands_of_run: Sequence[Sequence[str]]) -> str:
    words = [[sys.executable, "-m", *command_of_run] for command_of_run in commands_of_run]
    return " && ".join(map(shlex.join, [["cd", os.getcwd()], *words]))


def command(
    module: str,
    *arguments: str,
    log: Path | None = None,
    variables: Mapping[str, str] | None = None,
) -> None:
    """Runs a command of brt and raises if it fails.

    log: a file that the output is added to. variables: of the environment, besides the own ones.
    """
    line = [sys.executable, "-m", module, *arguments]
    environment = os.environ | (variables or {})
    with open(log, "a", encoding="utf-8") if log else contextlib.nullcontext() as output:
        status = subprocess.run(
            line, check=False, env=environment, stdout=output, stderr=output
        ).returncode
    if status:
        raise LadderError(
            f"{module} ended with status {status}; the reason is in {log or 'the lines above'}. "
            "Once it is gone, the same command continues."
        )


def write_tables(
    folder: Path, workdirs: Sequence[Path], step_times: Path, changes: dict[str, str]
) -> list[Table]:
    """Writes tables.md, tables.json and sweep.svg; returns the entries' and the papers' tables.

    changes: by the name of an entry, its own bindings.
    """
    times = read_step_times([str(step_times)] if step_times.exists() else [])
    groups = collect(open_runs(workdirs))
    names = [changes.get(entry_name(group), entry_name(group)) for group in groups]
    entries = entry_table(groups, names, f"Entries of {FLAGS.sweep or FLAGS.grid}")
    papers = PAPERS if FLAGS.paper else ()
    tables = [table for paper in papers for table in paper_tables(paper, groups, times)]
    tables = [table for table in tables if table.has_measurements]
    with contextlib.suppress(MissingExtra):
        write_whole(folder / "sweep.svg", svg(entry_plot(groups, names)))
    shown = "\n".join(table.as_markdown() for table in (entries, *tables))
    write_whole(folder / "tables.md", shown)
    content = [table.as_json() for table in (entries, *tables)]
    write_whole(folder / "tables.json", json.dumps(content, indent=1, ensure_ascii=False))
    return [entries, *tables]


def entry_plot(groups: Sequence[Group], names: Sequence[str]) -> Plot:
    """Returns the entries' bits per token: along the one number that a sweep varies, or apart."""
    label, numbers = one_number(names)
    x = numbers or list(range(1, len(groups) + 1))
    lines = []
    for name, of in (("state kept", "bits_per_token"), ("state cleared", "cleared_bits_per_token")):
        cells = [group.quantity(Quantity(name, of)).values for group in groups]
        points = sorted((at, np.mean(cell), error(cell)) for at, cell in zip(x, cells) if cell)
        if points:
            positions, means, errors = zip(*points, strict=True)
            style = "points" if numbers else "marks"
            lines.append(Line(name, positions, means, style, errors=errors))
    caption = "Means over seeds; bars are their standard errors, where there are several seeds."
    ticks = () if numbers else tuple(names)
    return Plot("sweep", "Entries", caption, label, "bits per token", lines, x_ticks=ticks)


def one_number(changes: Sequence[str]) -> tuple[str, list[float]]:
    """Returns the one setting that all entries bind to numbers, and these; or "" and none."""
    pairs = [change.split("=", 1) for change in changes]
    with contextlib.suppress(ValueError):
        ((name,), values) = {pair[0] for pair in pairs}, [float(pair[-1]) for pair in pairs]
        return name, values
    return "", []


def error(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1) / len(values) ** 0.5) if len(values) > 1 else 0.0


def entry_name(group: Group) -> str:
    return group.runs[0].folder.name.rpartition("-seed")[0]


def write_whole(path: Path, text: str) -> None:
    new = path.with_name(path.name + ".new")
    new.write_text(text, encoding="utf-8")
    os.replace(new, path)


if __name__ == "__main__":
    command_line.run(run_ladder)
