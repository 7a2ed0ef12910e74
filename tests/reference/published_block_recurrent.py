"""Hyperparameters of "Block-Recurrent Transformers", by system, corpus and row of its tables."""

from published_numbers import (
    ARXIV,
    CORPUS,
    GITHUB,
    PG19,
    PG19_BOOKS,
    PG19_BYTES,
    SMALL_CORPORA,
    Numbers,
    of_model,
    own,
    pg19_pieces,
    ref,
    told,
)

MODEL = "BlockRecurrentTransformer"

TRAINING = told(
    "app. B, C; optimizer_config.py, trainer_configuration.gin",
    {
        "Trainer.optimizer": ref("adafactor"),
        "adafactor.momentum": 0.9,
        "adafactor.decay_rate": 0.8,
        "adafactor.clip_update": 1.0,
        "adafactor.min_factored": 128,
        "Trainer.eval_every": 1000,
        "Evaluation.max_steps": 400,
        "CheckpointPolicy.every": 5000,
    },
) | own(
    {
        "Trainer.evaluation": ref("Evaluation()"),
        "Trainer.checkpoints": ref("CheckpointPolicy()"),
        "Trainer.stream": "documents",
        "Trainer.segments_per_step": 1,
    }
)
RSQRT = told(
    "app. C; lr_rsqrt_decay_std",
    {"Trainer.schedule": ref("rsqrt"), "rsqrt.multiplier": 1.0, "rsqrt.warmup_steps": 1000},
)


def cosine(maximum: float, minimum: float) -> Numbers:
    """lr_cosine_decay with the common warm-up, whose tail halves every run length."""
    return told(
        "app. C; lr_cosine_decay",
        {
            "Trainer.schedule": ref("cosine"),
            "cosine.maximum": maximum,
            "cosine.minimum": minimum,
            "cosine.warmup_steps": 1000,
            "cosine.tail": True,
        },
    )


LENGTH = told("app. C, I.2", {"Trainer.steps": 500_000, "Trainer.tokens_per_step": 131_072})
STACK = told(
    "4.1, app. C; base_memory.gin, transformer_layer.py",
    {
        f"{MODEL}.dropout": 0.05,
        f"{MODEL}.activation_dtype": "bfloat16",
        f"{MODEL}.logits_divisor": "vocabulary",
        "RelativeBias.num_buckets": 32,
        "RelativeBias.max_distance": 128,
    },
)
PLAIN = {f"{MODEL}.recurrent_layers": (), f"{MODEL}.feedback": False}


def sizes(
    layers: int, width=1024, heads=8, head_size=128, mlp=4096, where="4.1; size/medium_150M.gin"
) -> Numbers:
    """Dimensions of the stack."""
    return told(
        where,
        {
            f"{MODEL}.num_layers": layers,
            f"{MODEL}.width": width,
            f"{MODEL}.num_heads": heads,
            f"{MODEL}.head_size": head_size,
            f"{MODEL}.feed_forward_size": mlp,
        },
    )


def lengths(window: int, segment: int) -> Numbers:
    """W and N in tokens."""
    return told(
        "3, table 1; options/seq_*.gin, window_*.gin",
        {f"{MODEL}.window": window, "Trainer.segment_length": segment},
    )


def recurrent(gate: str, arrangement: str, layers=(9,), feedback=False) -> Numbers:
    """A cell of 512 states in the 10th layer of 12, or the 10th and 20th of 24."""
    return told(
        "3.1 to 3.6, 4.2; recurrent/*.gin",
        {
            f"{MODEL}.recurrent_layers": layers,
            f"{MODEL}.feedback": feedback,
            f"{MODEL}.memorizing_layers": (),
            "RecurrentCell.num_states": 512,
            "RecurrentCell.gate": gate,
            "RecurrentCell.arrangement": arrangement,
            "RecurrentCell.order": "parallel",
        },
    )


NO_MEMORY = told("4.1", PLAIN | {f"{MODEL}.memorizing_layers": ()})
SLIDING = lengths(512, 4096)
SYSTEMS = {
    "xl_512": sizes(12) | lengths(512, 512) | NO_MEMORY,
    "xl_1024": sizes(12) | lengths(1024, 1024) | NO_MEMORY,
    "xl_2048": sizes(12) | lengths(2048, 2048) | NO_MEMORY,
    "slide_12l": sizes(12) | SLIDING | NO_MEMORY,
    "slide_13l": sizes(13, where="4.1; size/layer13.gin") | SLIDING | NO_MEMORY,
    "rec_lstm_dual": sizes(12) | SLIDING | recurrent("lstm", "dual"),
    "rec_lstm_single": sizes(12) | SLIDING | recurrent("lstm", "single"),
    "rec_lstm_skip": sizes(12) | SLIDING | recurrent("lstm", "skip"),
    "rec_fixed_dual": sizes(12) | SLIDING | recurrent("fixed", "dual"),
    "rec_fixed_single": sizes(12) | SLIDING | recurrent("fixed", "single"),
    "rec_fixed_skip": sizes(12) | SLIDING | recurrent("fixed", "skip"),
    "feedback_lstm_single": sizes(12) | SLIDING | recurrent("lstm", "single", feedback=True),
    "feedback_fixed_skip": sizes(12) | SLIDING | recurrent("fixed", "skip", feedback=True),
    "memorizing_64k": sizes(12)
    | lengths(512, 512)
    | told(
        "table 1; memory/external_memory_32k.gin with the paper's size, layer -4 of 12",
        PLAIN
        | {
            f"{MODEL}.memorizing_layers": (8,),
            "ExternalMemory.size": 65_536,
            "ExternalMemory.neighbours": 128,
        },
    )
    | own({"ExternalMemory.search": "bucketed"}),
    "memorizing_dense_64k": sizes(13, where="memory2/mem_densekv_64k.gin: a layer more")
    | SLIDING
    | told(
        "memory2/mem_densekv_64k.gin",
        PLAIN
        | {
            f"{MODEL}.memorizing_layers": (6,),
            "ExternalMemory.size": 65_536,
            "ExternalMemory.search": "dense",
        },
    )
    | own({f"{MODEL}.remat": "layer"}),
}


def scaled(layers: int, width: int, heads: int, head_size: int, mlp: int, cells: tuple) -> Numbers:
    """A model of Table 4: recurrent with these cells, or XL without."""
    dimensions = sizes(layers, width, heads, head_size, mlp, "4.2, table 4; size/*.gin, tall_24L")
    if cells:
        return dimensions | SLIDING | recurrent("fixed", "skip", cells)
    return dimensions | lengths(512, 512) | NO_MEMORY


SIZES = {
    "40m": (512, 8, 64, 2048),
    "81m": (512, 8, 128, 4096),
    "162m": (1024, 8, 128, 4096),
    "325m": (1024, 16, 128, 8192),
    "650m": (1024, 16, 128, 8192),
    "1300m": (2048, 16, 128, 8192),
}
"""Columns of Table 4: width, heads, head size, MLP width."""
TALL = "650m", "1300m"


def on(system: Numbers, corpus: Numbers, schedule: Numbers = RSQRT, length=LENGTH) -> Numbers:
    """All numbers of a system on a corpus."""
    return TRAINING | STACK | schedule | length | system | of_model(MODEL, corpus)


HALVED = RSQRT | told("app. C; options/lr_scale_05.gin", {"rsqrt.multiplier": 0.5})
PG19_TOKENS = {name: on(system, PG19) for name, system in SYSTEMS.items()}
AS_BYTES = {name: on(system, PG19_BYTES) for name, system in SYSTEMS.items()}
ON_ARXIV = {name: on(system, ARXIV, HALVED) for name, system in SYSTEMS.items()}
GITHUB_LENGTH = told("app. C", {"Trainer.steps": 250_000, "Trainer.tokens_per_step": 524_288})
GITHUB_COSINE = cosine(0.005, 0.0005)
ON_GITHUB = {
    name: on(system, GITHUB, GITHUB_COSINE, GITHUB_LENGTH) for name, system in SYSTEMS.items()
}
SCALING = {}
for _name, _dimensions in SIZES.items():
    _layers, _cells = (24, (9, 19)) if _name in TALL else (12, (9,))
    _pieces, _schedule = pg19_pieces(32_000), cosine(0.01, 0.001)
    for _kind, _system in (
        ("rec", scaled(_layers, *_dimensions, _cells)),
        ("xl", scaled(_layers * 13 // 12, *_dimensions, ())),
    ):
        SCALING[f"{_name}_{_kind}"] = on(_system, _pieces, _schedule)

ROWS = (
    *("xl_512", "xl_1024", "xl_2048", "slide_12l", "slide_13l"),
    *("rec_lstm_dual", "rec_lstm_single", "rec_lstm_skip"),
    *("rec_fixed_dual", "rec_fixed_single", "rec_fixed_skip"),
    *("feedback_lstm_single", "feedback_fixed_skip", "memorizing_64k"),
)
"""Of Table 1, in its order."""

FLAT = {f"pg19_{name}.gin": numbers for name, numbers in PG19_TOKENS.items()}
FLAT |= {f"pg19_size_{name}.gin": numbers for name, numbers in SCALING.items()}
"""What configs/pg19_*.gin are."""

REC, SLIDE = PG19_TOKENS["rec_fixed_skip"], PG19_TOKENS["slide_12l"]


def _window(numbers: Numbers, window: int) -> Numbers:
    return numbers | told("table 3a", {f"{MODEL}.window": window})


def _states(states: int) -> Numbers:
    return REC | told("table 3b", {"RecurrentCell.num_states": states})


def _layers(layers: tuple) -> Numbers:
    return REC | told("4.3: adjacent, and apart", {f"{MODEL}.recurrent_layers": layers})


def _probe(maximum: float) -> Numbers:
    return SCALING["162m_rec"] | told("app. C: the probe", {"cosine.maximum": maximum})


def _vocabulary(vocabulary: str, size: int, store: str) -> Numbers:
    named = {"Corpus.vocabulary": vocabulary, "vocabulary_size": size}
    books = CORPUS | PG19_BOOKS | told("table 5", named) | own({"Corpus.store": store})
    return on(SYSTEMS["rec_fixed_skip"], books)


def _pieces_of(size: int) -> Numbers:
    return on(SYSTEMS["rec_fixed_skip"], pg19_pieces(size))


SWEEPS = {
    "table_1": [PG19_TOKENS[name] for name in ROWS],
    "table_1_bytes": [AS_BYTES[name] for name in ROWS],
    "table_1_arxiv": [ON_ARXIV[name] for name in ROWS],
    "table_1_github": [ON_GITHUB[name] for name in ROWS[:-1]],
    "table_3": [
        *(_window(REC, 128), _window(REC, 256), REC),
        *(_window(SLIDE, 128), _window(SLIDE, 256), SLIDE),
        *(_states(states) for states in (128, 256, 1024, 2048)),
    ],
    "table_4": [SCALING[f"{size}_{kind}"] for size in SIZES for kind in ("rec", "xl")],
    "table_5": [
        REC,
        _vocabulary("vocabularies/substitute_32k.model", 32_000, "stores/pg19_substitute32k"),
        _vocabulary("subwords:vocabularies/pg19_32k.subwords", 32_768, "stores/pg19_ste32k"),
        *(_pieces_of(n) for n in (128_000, 96_000, 64_000, 32_000, 8_000, 4_000, 1_000, 512)),
        AS_BYTES["rec_fixed_skip"],
    ],
    "learning_rate": [_probe(0.02), _probe(0.01), _probe(0.005)],
    "learning_rate_arxiv": [
        ON_ARXIV[name] | told("app. C", {"rsqrt.multiplier": rate})
        for name in ("slide_12l", "rec_fixed_skip")
        for rate in (1.0, 0.5)
    ],
    "recurrent_layers": [
        *(REC, _layers((8, 9)), _layers((3, 9))),
        REC | own({f"{MODEL}.num_layers": 13}),
        PG19_TOKENS["slide_13l"],
    ],
}
"""Rows of configs/sweeps/, in their order."""

SMALL = own(
    {
        "Trainer.optimizer": ref("adamw"),
        "Trainer.schedule": ref("cosine"),
        "cosine.maximum": 0.002,
        "cosine.minimum": 0.0002,
        "cosine.warmup_steps": 100,
        "Trainer.evaluation": ref("Evaluation()"),
        "Trainer.checkpoints": ref("CheckpointPolicy()"),
        "Trainer.steps": 600,
        "Trainer.segment_length": 512,
        "Trainer.tokens_per_step": 4096,
        "Trainer.log_every": 20,
        "Trainer.eval_every": 200,
        "Evaluation.max_steps": 20,
        "CheckpointPolicy.every": 50,
        f"{MODEL}.activation_dtype": "float32",
        f"{MODEL}.dropout": 0.0,
        f"{MODEL}.num_layers": 4,
        f"{MODEL}.width": 128,
        f"{MODEL}.num_heads": 4,
        f"{MODEL}.head_size": 32,
        f"{MODEL}.feed_forward_size": 512,
        f"{MODEL}.window": 64,
        f"{MODEL}.recurrent_layers": (2,),
        "RecurrentCell.num_states": 64,
        "RecurrentCell.gate": "fixed",
        "RecurrentCell.arrangement": "skip",
    }
)
"""The small model of bytes, a hundredth of the published one; also what --scale=small makes."""
ON_CORPORA = {
    f"small/rec_fixed_skip.gin+corpora/{name}.gin": SMALL | of_model(MODEL, corpus)
    for name, corpus in SMALL_CORPORA.items()
}
