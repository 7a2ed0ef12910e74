"""Times training steps of several configs side by side, and other parts alone.

    python -m brt.benchmark --configs=FIRST.gin,SECOND.gin

    python -m brt.benchmark --input=STORE --rows=32 --segment_length=4096

    python -m brt.benchmark --generate=FILE.gin --positions=1000,100000 --written=1000

    python -m brt.benchmark --evaluation_speed=FILE.gin --attention_lengths=100,800,3800

    python -m brt.benchmark --memory_budget=16GiB --configs=FILE.gin

    python -m brt.benchmark --topology=v4-32 --configs=FIRST.gin,SECOND.gin

    python -m brt.benchmark --trace=FOLDER

    python -m brt.benchmark --scaling=FOLDER

The first four forms time training steps, reading a token store, generation at two positions of a
long document, and evaluation with a memory and with a window for every token. The last four run no
step: they find the longest segments whose step fits a memory budget, compile the step for TPUs
or GPUs, read the newest trace of `brt.train --profile`, and estimate the collectives of three model
sizes on seven clusters (hours; resumable).

Configs alternate step by step; compare the ratios to the baseline, the first config unless named.
"""

import json
from typing import Any

from absl import flags

from brt import command_line
from brt.benchmarks import memory_budget, scaling, slices, traces
from brt.benchmarks.timing import evaluation_speed, generation, input, steps
from brt.experiment import Configuration

FLAGS = flags.FLAGS
command_line.define_topology()
flags.DEFINE_list(
    "configs",
    [],
    "Configs to compare, each a gin file or SYSTEM.gin+CORPUS.gin; --gin bindings apply to all.",
)
flags.DEFINE_string("baseline", None, "Name of the config that counts as 1.00.")
flags.DEFINE_integer("rounds", 20, "Timed steps of each config.")
flags.DEFINE_string("input", None, "Time the reading of this token store, and nothing else.")
flags.DEFINE_integer("rows", 32, "Rows of a batch, for --input.")
flags.DEFINE_integer("segment_length", 4096, "Tokens of a segment, for --input.")
flags.DEFINE_string("generate", None, "Time reading and writing with the model of this config.")
flags.DEFINE_list("positions", ["1000", "100000"], "Where two streams go on, for --generate.")
flags.DEFINE_integer("written", 1000, "Tokens that each stream writes, for --generate.")
flags.DEFINE_string("evaluation_speed", None, "Time evaluation by the model of this config.")
flags.DEFINE_list(
    "attention_lengths",
    [*map(str, evaluation_speed.LENGTHS)],
    "Lengths that --evaluation_speed times.",
)
flags.DEFINE_string("memory_budget", None, "Longest segments of --configs that fit: 16GiB.")
flags.DEFINE_list("same_length_bindings", [], "Bound to the segment length, for --memory_budget.")
flags.DEFINE_string("trace", None, "Sum the time of a run folder's newest trace by named scope.")
flags.DEFINE_boolean("largest_batch", False, "With --topology: the largest batch that fits a chip.")
flags.DEFINE_string("scaling", None, "Write a table and a figure of clusters to this folder.")
flags.DEFINE_string("json", None, "Also write the figures to this file.")


def configured(file: str) -> Configuration:
    return Configuration([file], FLAGS.gin_bindings, FLAGS.gin_search_paths, FLAGS.allow_imports)


def main() -> None:
    content = measure()
    if FLAGS.json:
        with open(FLAGS.json, "w", encoding="utf-8") as file:
            json.dump(content, file)


def measure() -> dict[str, Any]:
    if FLAGS.generate:
        positions = [int(position) for position in FLAGS.positions]
        figures = generation.show(configured(FLAGS.generate), positions, FLAGS.written)
        return {"config": FLAGS.generate, "generation": figures}
    if FLAGS.trace:
        times = traces.newest_times(FLAGS.trace)
        print(traces.table(times))
        return {"trace": FLAGS.trace, "scopes": times._asdict()}
    if FLAGS.scaling:
        return {"scaling": scaling.show(FLAGS.scaling)}
    if FLAGS.input:
        figures = input.show(FLAGS.input, FLAGS.rows, FLAGS.segment_length)
        return {"store": FLAGS.input, "input": figures}
    if FLAGS.evaluation_speed:
        file, lengths = FLAGS.evaluation_speed, [int(n) for n in FLAGS.attention_lengths]
        speeds = evaluation_speed.show(configured(file), lengths, FLAGS.rounds)
        return {"config": file, "evaluation_speed": speeds}
    if FLAGS.configs and FLAGS.gin_file:
        raise ValueError("Give --configs or --gin_file: files are joined by + in --configs.")
    # Several --gin_file are one config, as for every command.
    files = FLAGS.configs or ["+".join(FLAGS.gin_file)] * bool(FLAGS.gin_file)
    if not files:
        raise ValueError("--configs is empty: name the gin files to compare, separated by commas.")
    configurations = [configured(file) for file in files]
    if FLAGS.memory_budget:
        budget = memory_budget.parse_bytes(FLAGS.memory_budget)
        longest = memory_budget.show(configurations, budget, FLAGS.same_length_bindings)
        return {"budget": budget, "longest": longest}
    names = [steps.stem(file) for file in files]
    if FLAGS.baseline and FLAGS.baseline not in names:
        raise ValueError(f"--baseline = {FLAGS.baseline}: choose one of {', '.join(names)}.")
    if FLAGS.topology:
        return slices.show(configurations, FLAGS.topology, FLAGS.baseline, FLAGS.largest_batch)
    return steps.compare(configurations, FLAGS.rounds, FLAGS.baseline)


if __name__ == "__main__":
    command_line.run(main)
