"""Hyperparameters of the algorithmic tasks of "Recurrent Memory Transformer", by row."""

from published_numbers import CORPUS, Numbers, own, ref, told

TRAINING = told(
    "app. A.1; logs",
    {
        "Trainer.optimizer": ref("adamw"),
        "adamw.clip_norm": 0.25,
        "Trainer.schedule": ref("constant_rate"),
        "constant_rate.value": 1e-4,
        "constant_rate.warmup_steps": 0,
        "Trainer.plateau": ref("ReduceOnPlateau()"),
        "ReduceOnPlateau.factor": 0.5,
        "ReduceOnPlateau.floor": 1e-6,
        "Trainer.eval_every": 12_000,
    },
) | own(
    {
        "Trainer.log_every": 1000,
        "Trainer.evaluation": ref("Evaluation()"),
        "Evaluation.cleared": False,
        "Evaluation.score": ref("FreeRunning()"),
        "Trainer.checkpoints": ref("CheckpointPolicy()"),
        "CheckpointPolicy.every": 12_000,
        "Trainer.stream": "samples",
    }
)
LONG = told(
    "logs",
    {"ReduceOnPlateau.patience": 5, "ReduceOnPlateau.floor": 1e-5, "Trainer.eval_every": 40_000},
) | own({"CheckpointPolicy.every": 40_000})  # fmt: skip


def task(source, samples, arguments, ids, store, evaluated, where) -> Numbers:
    """What a task is: its source and arguments, samples of each split and number of ids."""
    names = ("num_train", "num_validation", "num_test")
    sets = {f"{source}.{name}": number for name, number in zip(names, samples)}
    told_of = {f"{source}.{name}": value for name, value in arguments.items()}
    return (
        CORPUS
        | told(where, told_of | sets | {"vocabulary_size": ids})
        | own(
            {
                "Corpus.source": ref(f"{source}()"),
                "Corpus.store": f"stores/{store}",
                "Evaluation.tokens_per_step": evaluated,
            }
        )
    )


SETS = 100_000, 5_000, 10_000


def copy(symbols=24, ids=12) -> Numbers:
    arguments = {"length": symbols, "num_symbols": ids - 2}
    store = f"copy_{symbols}"
    return task("CopyTask", SETS, arguments, ids, store, 14_400, "5, app. A.1; logs")


def reverse(symbols=24, ids=12) -> Numbers:
    arguments = {"length": symbols, "num_symbols": ids - 2}
    store = f"reverse_{symbols}"
    return task("ReverseTask", SETS, arguments, ids, store, 14_400, "5, app. A.1; logs")


RETRIEVAL = task(
    "AssociativeRetrieval", SETS, {"num_pairs": 4}, 37, "retrieval", 12_000, "5, app. A.1; logs"
)
QUADRATIC = task(
    "QuadraticEquations", (100_000, 10_000, 20_000), {"max_root": 100}, 24, "quadratic_100", 18_000,
    "app. A.3; logs",
) | told(
    "app. A.3: six stages of 30", {"FreeRunning.answer": 30, "FreeRunning.end": 90}
) | own({"FreeRunning.blank": 0})  # fmt: skip
PADDED = own({"AssociativeRetrieval.padded_length": 12, "Corpus.store": "stores/retrieval_12"})

SIZES = {
    "4x128": told(
        "app. A.1; logs",
        {"num_layers": 4, "width": 128, "num_heads": 4, "head_size": 64, "feed_forward_size": 256},
    ),
    "6x64": told(
        "app. A.1; logs",
        {"num_layers": 6, "width": 64, "num_heads": 4, "head_size": 32, "feed_forward_size": 128},
    ),
    "6x128": told(
        "app. A.3; logs",
        {"num_layers": 6, "width": 128, "num_heads": 6, "head_size": 64, "feed_forward_size": 256},
    ),
}
PATIENCE = {"4x128": 8, "6x64": 10, "6x128": 10}


def _named(model: str, size: str) -> Numbers:
    sizes = SIZES[size] | told("logs", {"dropout": 0.1})
    return {f"{model}.{name}": number for name, number in sizes.items()}


def _cut(segments, segment, steps, batch) -> Numbers:
    return told(
        "logs",
        {
            "Trainer.segments_per_step": segments,
            "Trainer.segment_length": segment,
            "Trainer.tokens_per_step": batch * segments * segment,
            "Trainer.steps": steps,
        },
    )


def row(what, size, kind, segments, segment, steps, memory=None, batch=32) -> Numbers:
    """A run: of a task, a model's size and kind, cut into segments, with a memory of so many.

    kind: "baseline", "txl", "rmt", or "mt" for the memory at the start only.
    """
    memory = segment if memory is None else memory
    rmt = kind in ("rmt", "mt")
    ids = what["vocabulary_size"]
    rest = {name: number for name, number in what.items() if name != "vocabulary_size"}
    numbers = TRAINING | rest | {"TransformerXL.vocabulary_size": ids}
    numbers |= _named("TransformerXL", size) | _cut(segments, segment, steps, batch)
    numbers |= told("logs", {"ReduceOnPlateau.patience": PATIENCE[size]})
    cache = memory if kind == "txl" else 0
    numbers |= told("figures 3, 4, 8, table 1; logs", {"TransformerXL.memory_length": cache})
    if not rmt:
        return numbers | own({"Trainer.model": ref("TransformerXL")})
    numbers |= own({"Trainer.model": ref("RecurrentMemoryTransformer")})
    numbers |= told(
        "figures 3, 4, 8, table 1; mem_transformer.py; logs: the flag of BPTT is 0, the full chain",
        {
            "RecurrentMemoryTransformer.num_memory": memory,
            "RecurrentMemoryTransformer.memory_at_end": kind == "rmt",
            "RecurrentMemoryTransformer.initial_rows": "identical",
            "RecurrentMemoryTransformer.auxiliary_weight": 0.0,
            "Trainer.bptt_depth": None,
        },
    )
    return numbers | own({"RecurrentMemoryTransformer.allow_long_memory": True})


COPY_CUTS = {1: (72, 400_000), 3: (24, 400_000), 6: (12, 900_000), 9: (8, 900_000)}
REVERSE_CUTS = {1: (48, 250_000), 2: (24, 400_000), 4: (12, 850_000), 6: (8, 700_000)}
RETRIEVAL_CUTS = {
    1: (10, 400_000),
    2: (5, 1_000_000),
    3: (4, 1_000_000),
    4: (3, 1_000_000),
    5: (2, 1_000_000),
}
"""Segments of a sample to the length of one and the updates (logs)."""


def _figure_3(what, size, cuts, kind) -> list[Numbers]:
    found = []
    for segments, (segment, steps) in cuts.items():
        if segments == 1 and kind != "baseline":
            continue
        padded = PADDED if cuts is RETRIEVAL_CUTS and segments in (3, 4) else {}
        numbers = row(what, size, kind, segments, segment, steps) | padded
        if kind == "mt" and cuts is REVERSE_CUTS:
            numbers |= told("logs", {"ReduceOnPlateau.patience": 10})
        found.append(numbers)
    return found


def _long_copy(kind, symbols, segments, segment, steps, memory, batch=128) -> Numbers:
    what = copy(symbols, ids=10)
    return row(what, "4x128", kind, segments, segment, steps, memory, batch) | LONG


def _long_reverse(kind, segments, segment, steps, memory) -> Numbers:
    return row(reverse(120, ids=10), "4x128", kind, segments, segment, steps, memory, 128) | LONG


def _half(kind) -> list[Numbers]:
    short = [(copy(), 3, 24, 500_000), (copy(), 6, 12, 850_000)]
    short += [(reverse(), 2, 24, 500_000), (reverse(), 4, 12, 850_000)]
    return [row(w, "4x128", kind, n, length, steps, length // 2) for w, n, length, steps in short]


_LONG_REVERSES = (2, 120, 400_000, 60), (4, 60, 500_000, 60), (6, 40, 1_000_000, 60)

SWEEPS = {
    "rmt_figure_3": [
        *(
            n
            for kind in ("baseline", "txl", "rmt", "mt")
            for n in _figure_3(copy(), "4x128", COPY_CUTS, kind)
        ),
        *(
            n
            for kind in ("baseline", "txl", "rmt", "mt")
            for n in _figure_3(reverse(), "4x128", REVERSE_CUTS, kind)
        ),
        *(
            n
            for kind in ("baseline", "txl", "rmt")
            for n in _figure_3(RETRIEVAL, "6x64", RETRIEVAL_CUTS, kind)
        ),
    ],
    "rmt_figure_4": [
        _long_copy("baseline", 120, 1, 360, 100_000, 0, batch=32),
        *(
            _long_copy(kind, *arguments)
            for kind in ("txl", "rmt")
            for arguments in (
                (120, 3, 120, 200_000, 60),
                (120, 6, 60, 400_000, 30),
                (120, 9, 40, 600_000, 40),
                (240, 6, 120, 300_000, 60),
                (360, 9, 120, 200_000, 60),
            )
        ),
    ],
    "rmt_figure_8": [
        *_half("txl"),
        *_half("rmt"),
        *(_long_reverse("txl", *cut) for cut in _LONG_REVERSES),
        *(_long_reverse("rmt", *cut) for cut in _LONG_REVERSES),
        _long_reverse("txl", 6, 40, 1_000_000, 40),
    ],
    "rmt_table_1": [
        row(QUADRATIC, "6x128", "baseline", 1, 180, 600_000),
        row(QUADRATIC, "6x128", "txl", 6, 30, 600_000),
        row(QUADRATIC, "6x128", "rmt", 6, 30, 600_000),
    ],
}  # fmt: skip
"""Rows of configs/sweeps/, in their order."""


_SHORT = {
    "4x128": ("copy", copy(), 3, 24, 400_000),
    "6x64": ("retrieval", RETRIEVAL, 2, 5, 1_000_000),
    "6x128": ("quadratic", QUADRATIC, 6, 30, 600_000),
}
HEADERS = {
    f"task_models/{kind}_{size}.gin+tasks/{name}.gin": row(what, size, kind, *cut)
    for size, (name, what, *cut) in _SHORT.items()
    for kind in ("baseline", "txl", "rmt")
}
"""The commands that the headers of configs/task_models/ name."""
_LONG = "Trainer.steps={} RecurrentMemoryTransformer.num_memory=60"
HEADERS |= {
    "task_models/rmt_4x128.gin+tasks/reverse.gin Trainer.steps=850_000": row(
        reverse(), "4x128", "rmt", 4, 12, 850_000
    ),
    "task_models/rmt_4x128.gin+tasks/copy_120.gin+recipes/long_samples.gin "
    + _LONG.format("200_000"): _long_copy("rmt", 120, 3, 120, 200_000, 60),
    "task_models/rmt_4x128.gin+tasks/reverse_120.gin+recipes/long_samples.gin "
    + _LONG.format("400_000"): _long_reverse("rmt", 2, 120, 400_000, 60),
}


def block_recurrent(what, size, segments, segment, steps, extra) -> Numbers:
    """A Block-Recurrent or Memorizing Transformer of the published size, which no paper has."""
    model = "BlockRecurrentTransformer"
    ids = what["vocabulary_size"]
    rest = {name: number for name, number in what.items() if name != "vocabulary_size"}
    numbers = TRAINING | rest | {f"{model}.vocabulary_size": ids} | _named(model, size)
    numbers |= _cut(segments, segment, steps, 32)
    numbers |= told("logs", {"ReduceOnPlateau.patience": PATIENCE[size]})
    fixed = {f"{model}.logits_divisor": "width", f"{model}.activation_dtype": "float32"}
    return numbers | own(fixed | extra)


def _cell(window, states) -> dict:
    return {
        "BlockRecurrentTransformer.window": window,
        "BlockRecurrentTransformer.recurrent_layers": (-1,),
        "RecurrentCell.num_states": states,
        "RecurrentCell.gate": "fixed",
        "RecurrentCell.arrangement": "skip",
    }


def _memory(window, size, neighbours) -> dict:
    return {
        "BlockRecurrentTransformer.window": window,
        "BlockRecurrentTransformer.memorizing_layers": (-2,),
        "ExternalMemory.size": size,
        "ExternalMemory.neighbours": neighbours,
    }


_OF = {
    "4x128": ("copy", copy(), 3, 24, 400_000, _cell(4, 24), _memory(24, 72, 8)),
    "6x64": ("retrieval", RETRIEVAL, 2, 5, 1_000_000, _cell(5, 5), _memory(5, 10, 4)),
    "6x128": ("quadratic", QUADRATIC, 6, 30, 600_000, _cell(30, 30), _memory(30, 180, 16)),
}
OWN_MODELS = {
    f"task_models/{kind}_{size}.gin+tasks/{name}.gin": block_recurrent(what, size, *cut, extra)
    for size, (name, what, *cut, cell, memory) in _OF.items()
    for kind, extra in (("rec_fixed_skip", cell), ("memorizing", memory))
}
"""The other architectures of this project on the paper's tasks."""
