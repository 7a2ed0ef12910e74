"""Hyperparameters of "Transformer-XL" and of "Recurrent Memory Transformer" on text.

By experiment and row of a table; see `published_numbers` for what the places mean.
"""

from published_numbers import (
    ENWIK8,
    LM1B,
    PTB,
    TEXT8,
    WIKITEXT103,
    Numbers,
    of_model,
    own,
    ref,
    told,
)

MODEL = "TransformerXL"
MEMORY = "RecurrentMemoryTransformer"

TRAINING = (
    told(
        "train.py",
        {
            "Trainer.optimizer": ref("adamw"),
            "adamw.b1": 0.9,
            "adamw.b2": 0.999,
            "adamw.eps": 1e-8,
            "adamw.weight_decay": 0.0,
            "adamw.clip_norm": 0.25,
            "Trainer.schedule": ref("cosine"),
            "cosine.maximum": 2.5e-4,
            "cosine.minimum": 0.0,
            "Trainer.seed": 1111,
            "Trainer.eval_every": 4000,
            "CheckpointPolicy.keep_best": True,
            f"{MODEL}.std": 0.02,
            f"{MODEL}.projection_std": 0.01,
            f"{MODEL}.norm": "post",
            f"{MODEL}.untie_biases": False,
            f"{MODEL}.same_length": False,
            f"{MODEL}.clamp_length": None,
        },
    )
    | told("3.2", {"Trainer.stream": "contiguous"})
    | told("3.3", {f"{MODEL}.encoding": "relative", "Trainer.loss": "full"})
    | own(
        {
            "Trainer.model": ref(MODEL),
            "Trainer.evaluation": ref("Evaluation()"),
            "Trainer.checkpoints": ref("CheckpointPolicy()"),
            "CheckpointPolicy.every": 4000,
        }
    )
)
WORDS = of_model(MODEL, WIKITEXT103) | told(
    "train.py",
    {
        f"{MODEL}.cutoffs": (20_000, 40_000, 200_000),
        f"{MODEL}.div_val": 1,
        f"{MODEL}.tied_projections": True,
        f"{MODEL}.tied": True,
    },
)
LARGE_WORDS = WORDS | told(
    "run_wt103_large.sh; train.py: all but the first bin's are tied",
    {f"{MODEL}.div_val": 4, f"{MODEL}.tied_projections": (False, True, True, True)},
)
BILLION = of_model(MODEL, LM1B) | told(
    "tf/data_utils.py, run_lm1b_*.sh; 3.2: training shards shuffled",
    {
        f"{MODEL}.cutoffs": (60_000, 100_000, 640_000),
        f"{MODEL}.div_val": 4,
        f"{MODEL}.tied_projections": False,
        "Trainer.stream": "shuffled",
    },
)
SYMBOLS, LETTERS = of_model(MODEL, ENWIK8), of_model(MODEL, TEXT8)


def model(layers, width, heads, head_size, mlp, dropout, attention_dropout, where) -> Numbers:
    """Dimensions and dropouts."""
    return told(
        where,
        {
            f"{MODEL}.num_layers": layers,
            f"{MODEL}.width": width,
            f"{MODEL}.num_heads": heads,
            f"{MODEL}.head_size": head_size,
            f"{MODEL}.feed_forward_size": mlp,
            f"{MODEL}.dropout": dropout,
            f"{MODEL}.attention_dropout": attention_dropout,
        },
    )


def run(length, memory, batch, steps, warmup, where) -> Numbers:
    """L and M in training, rows, updates and warm-up."""
    return told(
        where,
        {
            "Trainer.segment_length": length,
            f"{MODEL}.memory_length": memory,
            "Trainer.tokens_per_step": batch * length,
            "Trainer.steps": steps,
            "cosine.warmup_steps": warmup,
        },
    )


def validated(length, batch, memory=None) -> Numbers:
    """Evaluation in the loop: segments, rows, and the memory that keeps what is visible equal."""
    numbers = told("train.py: batch 10", {"Evaluation.tokens_per_step": batch * length})
    if memory:
        numbers |= own({"Evaluation.model": ref(f"evaluation/{MODEL}")})
        numbers |= told("run_*.sh", {"Evaluation.segment_length": length})
        numbers |= told("train.py: M + L - L'", {f"evaluation/{MODEL}.memory_length": memory})
    return numbers


def tested(length, memory, clamp, batch) -> Numbers:
    """The script's settings of the test: L, M, clamp (None: off), rows; same_length throughout."""
    return told(
        "run_*.sh, section eval",
        {
            "Evaluation.model": ref(f"evaluation/{MODEL}"),
            "Evaluation.segment_length": length,
            "Evaluation.tokens_per_step": batch * length,
            f"evaluation/{MODEL}.memory_length": memory,
            f"evaluation/{MODEL}.same_length": True,
            f"evaluation/{MODEL}.clamp_length": clamp,
        },
    )


REMAT = own({f"{MODEL}.remat": "layer"})
BASE = model(16, 410, 10, 41, 2100, 0.1, 0.0, "run_wt103_base.sh")
WT103_BASE = TRAINING | WORDS | BASE | run(150, 150, 60, 200_000, 0, "run_wt103_base.sh")
WT103_BASE |= validated(150, 10)
WT103_LARGE = (
    TRAINING
    | LARGE_WORDS
    | REMAT
    | model(18, 1024, 16, 64, 4096, 0.2, 0.2, "run_wt103_large.sh")
    | run(384, 384, 128, 4_000_000, 16_000, "run_wt103_large.sh")
    | validated(128, 10, 640)
)
CHARACTERS = TRAINING | model(12, 512, 8, 64, 2048, 0.1, 0.0, "run_enwik8_base.sh")
CHARACTERS |= run(512, 512, 22, 400_000, 0, "run_enwik8_base.sh") | validated(128, 10, 896)
LARGE_RUN = TRAINING | REMAT | run(768, 768, 64, 400_000, 4000, "run_enwik8_large.sh")
LARGE_RUN |= validated(128, 10, 1408)
CHARACTERS_18L = LARGE_RUN | model(18, 640, 10, 64, 2208, 0.15, 0.15, "table 2: layers; own")
CHARACTERS_24L = LARGE_RUN | model(24, 1024, 8, 128, 3072, 0.15, 0.15, "run_enwik8_large.sh")
NO_WARMUP = told("run_text8_large.sh", {"cosine.warmup_steps": 0})
LM1B_BASE = (
    TRAINING
    | BILLION
    | model(18, 1024, 8, 128, 4096, 0.0, 0.0, "run_lm1b_base.sh")
    | run(32, 32, 224, 500_000, 20_000, "run_lm1b_base.sh")
    | validated(32, 10)
    | told("table 4: 0.46B", {f"{MODEL}.tied": False})
)
LM1B_LARGE = (
    TRAINING
    | BILLION
    | REMAT
    | model(24, 1280, 16, 80, 8192, 0.05, 0.05, "run_lm1b_large.sh")
    | run(32, 32, 512, 1_200_000, 30_000, "run_lm1b_large.sh")
    | validated(32, 10)
    | told("run_lm1b_large.sh", {f"{MODEL}.tied": True})
)
PENN = (
    TRAINING
    | of_model(MODEL, PTB)
    | model(12, 384, 8, 48, 1216, 0.5, 0.0, "own, of 24M (table 3)")
    | run(70, 70, 20, 100_000, 0, "own")
    | validated(70, 10)
    | told("4.1", {f"{MODEL}.variational_dropout": True, "Trainer.average": ref("WeightAverage()")})
)
ABLATION = (
    TRAINING
    | WORDS
    | model(12, 384, 8, 48, 1744, 0.1, 0.0, "own, of 128M (table 5)")
    | run(128, 128, 64, 200_000, 0, "4.2: length 128; own")
)


def _of_context_group(network: str, layers: int, hidden: int) -> Numbers:
    """A network of Table 6 of 151M parameters, of which its size alone is published.

    Words and training are those of the Transformer-XL of the group.
    """
    numbers = {
        name: number.value
        for name, number in (WT103_BASE | of_model(network, WIKITEXT103)).items()
        if not name.startswith(f"{MODEL}.")
    }
    numbers["Trainer.model"] = ref(network)
    shape = {"num_layers": layers, "width": 410, "hidden_size": hidden, "dropout": 0.1}
    words = {"cutoffs": (20_000, 40_000, 200_000), "div_val": 1, "tied": True}
    return own(numbers | {f"{network}.{name}": value for name, value in (shape | words).items()})


CONTEXT_GROUP = {
    "LSTM": _of_context_group("LSTM", 2, 2794),
    "QRNN": _of_context_group("QRNN", 4, 1656) | told("table 1: 4 layers", {"QRNN.num_layers": 4}),
}

RESULTS = [
    *(WT103_BASE, WT103_LARGE),
    *(numbers | SYMBOLS for numbers in (CHARACTERS, CHARACTERS_18L, CHARACTERS_24L)),
    CHARACTERS | LETTERS,
    CHARACTERS_24L | LETTERS | NO_WARMUP,
    *(LM1B_BASE, LM1B_LARGE, PENN),
]
_XL = "transformer_xl"
_ENWIK8 = "corpora/enwik8_symbols.gin"
_LM1B = "recipes/one_billion_word.gin"
TESTED = {
    f"{_XL}/wt103_base.gin+recipes/wikitext103.gin+{_XL}/test_wt103_base.gin": WT103_BASE
    | tested(64, 640, 400, 10),
    f"{_XL}/wt103_large.gin+recipes/wikitext103_div4.gin+{_XL}/test_wt103_large.gin": WT103_LARGE
    | tested(128, 1600, 1000, 10),
    f"{_XL}/characters_12l.gin+{_ENWIK8}+{_XL}/test_characters_base.gin": CHARACTERS
    | SYMBOLS
    | tested(80, 2100, 820, 10),
    f"{_XL}/characters_18l.gin+{_ENWIK8}+{_XL}/test_characters_large.gin": CHARACTERS_18L
    | SYMBOLS
    | tested(128, 3800, 1000, 10),
    f"{_XL}/characters_24l.gin+{_ENWIK8}+{_XL}/test_characters_large.gin": CHARACTERS_24L
    | SYMBOLS
    | tested(128, 3800, 1000, 10),
    f"{_XL}/lm1b_base.gin+{_LM1B}+{_XL}/test_lm1b.gin": LM1B_BASE | tested(32, 128, None, 64),
    f"{_XL}/lm1b_large.gin+{_LM1B}+{_XL}/test_lm1b.gin Evaluation.tokens_per_step=256": LM1B_LARGE
    | tested(32, 128, None, 8),
}
"""Configs with the file that tests them, and bindings as their headers name them."""


def _ablated(recurrence: bool, encoding: str, loss: str, rows: int = 0) -> Numbers:
    memory = {} if recurrence else {f"{MODEL}.memory_length": 0}
    kind = {f"{MODEL}.encoding": encoding, "Trainer.loss": loss}
    numbers = ABLATION | told("table 5", memory | kind)
    return numbers | own({f"{MODEL}.position_rows": rows})


def _equal_memory(length: int, recurrence: bool, loss: str) -> Numbers:
    lengths = {"Trainer.segment_length": length, "Trainer.loss": loss}
    if not recurrence:
        lengths[f"{MODEL}.memory_length"] = 0
    return ABLATION | told("table 8", lengths) | own({"Trainer.tokens_per_step": 60_544})


# The Recurrent Memory Transformer, sections 4 and app. A; its code and logs.

TOKENS = told(
    "lmr: mem_transformer.py; logs",
    {
        "Trainer.model": ref(MEMORY),
        f"{MEMORY}.memory_at_end": True,
        f"{MEMORY}.read_memory_from_cache": False,
        f"{MEMORY}.initial_rows": "identical",
    },
)
ENWIK8_BASE = (
    TRAINING | SYMBOLS | model(12, 512, 8, 64, 2048, 0.1, 0.0, "RMT 4; run_enwik8_base.sh")
)
ROWS = {50: 128, 150: 60, 128: 64, 512: 22}
"""Streams of a step by the length of a segment, whatever is read again (logs)."""


def text(corpus, segment, cache, tokens=0, depth=0, twice=False, at_end=True) -> Numbers:
    """A row of Tables 2, 4 or 5: segment, states cached, memory tokens and depth of BPTT."""
    words = corpus == "wikitext103"
    base = TRAINING | WORDS | BASE if words else ENWIK8_BASE
    steps = 200_000 if words else 400_000
    evaluated = segment if words else 128
    numbers = base | run(segment, cache, ROWS[segment], steps * (1 + twice), 0, "logs")
    numbers |= told("train.py: batch 10", {"Evaluation.tokens_per_step": 10 * evaluated})
    if evaluated != segment:
        numbers |= told("logs", {"Evaluation.segment_length": evaluated})
    if not tokens:
        return numbers
    auxiliary = 0.01 if cache and at_end else 0.0
    numbers |= TOKENS | told("tables 2, 4, 5", {f"{MEMORY}.num_memory": tokens})
    numbers |= told("app. A.5", {f"{MEMORY}.auxiliary_weight": auxiliary})
    numbers |= told("logs", {f"{MEMORY}.memory_at_end": at_end})
    numbers |= own({f"{MEMORY}.allow_long_memory": tokens >= segment})
    again = {"Trainer.reread_segments": depth, "Trainer.segments_per_step": 1}
    return numbers | told("tables 2, 4, 5: BPTT; lmr: train.py", again)


def _wt(*arguments, **options) -> Numbers:
    return text("wikitext103", *arguments, **options)


def _en(*arguments, **options) -> Numbers:
    return text("enwik8", *arguments, **options)


def _memtr(tokens: int) -> Numbers:
    return _wt(150, 0, tokens, at_end=False)


SWEEPS = {
    "txl_results": RESULTS,
    "txl_table_5": [
        _ablated(True, "relative", "full"),
        _ablated(True, "shaw", "full", 256),
        _ablated(True, "relative", "half"),
        _ablated(False, "relative", "full"),
        _ablated(False, "relative", "half"),
        _ablated(False, "shaw", "full", 128),
        _ablated(False, "shaw", "half", 128),
        _ablated(False, "absolute", "half"),
        _ablated(False, "learned", "half", 128),
    ],
    "txl_table_8": [
        _equal_memory(128, True, "full"),
        _equal_memory(128, True, "half"),
        _equal_memory(176, False, "full"),
        _equal_memory(172, False, "half"),
    ],
    "rmt_table_2": [
        *(_wt(150, 0), _memtr(10)),
        *(_wt(150, 150), _wt(150, 25), _wt(150, 75)),
        *(_wt(150, 0, 10, 3), _wt(150, 0, 25, 2)),
        *(_wt(150, 75, 5, 3), _wt(150, 150, 10, 3, twice=True)),
        *(_wt(50, 0), _wt(50, 100), _wt(50, 50), _wt(50, 25), _wt(50, 10)),
        *(_wt(50, 0, 1, 1), _wt(50, 0, 10, 3)),
    ],
    "rmt_table_4": [
        _en(512, 512),
        *(_en(128, cache) for cache in (200, 100, 75, 40, 20, 10)),
        *(_en(128, 0, tokens, depth) for tokens in (5, 10) for depth in (1, 2)),
        *(_en(128, 0, 20, depth) for depth in (0, 1, 2)),
    ],
    "rmt_table_5": [
        _wt(150, 0),
        *(_memtr(tokens) for tokens in (10, 25, 75, 150)),
        *(_wt(150, 150), _wt(150, 150, twice=True)),
        *(_wt(150, 75), _wt(150, 75, twice=True), _wt(150, 25)),
        *(_wt(150, 0, 10, depth) for depth in (0, 1, 2, 3)),
        *(_wt(150, 0, 25, depth) for depth in (0, 1, 2)),
        *(_wt(150, 70, 5, 3), _wt(150, 75, 5, 3)),
        *(_wt(150, 140, 10, 0), _wt(150, 150, 10, 1), _wt(150, 150, 10, 3, twice=True)),
        *(_wt(50, cache) for cache in (0, 200, 100, 50, 25, 10, 5, 1)),
        *(_wt(50, 0, 1, depth) for depth in (0, 1, 2, 3)),
        *(_wt(50, 0, tokens, depth) for tokens in (5, 10) for depth in (0, 1, 2, 3, 4)),
        *(_wt(50, 0, 25, depth) for depth in (0, 1, 2)),
        *(_wt(50, 0, 50, depth) for depth in (0, 1)),
    ],
}
"""Rows of configs/sweeps/, in their order."""

_WT103 = "recipes/wikitext103.gin"
HEADERS = {
    f"rmt/rmt_wt103_150.gin+{_WT103}": _wt(150, 0, 10, 3),
    f"rmt/rmt_wt103_50.gin+{_WT103}": _wt(50, 0, 10, 4),
    f"rmt/txl_wt103_50.gin+{_WT103}": _wt(50, 50),
    f"rmt/rmt_txl_wt103_150.gin+{_WT103} Trainer.steps=400_000": _wt(150, 150, 10, 3, twice=True),
    f"rmt/memtr_wt103_150.gin+{_WT103}": _memtr(10),
    "rmt/rmt_enwik8_128.gin+corpora/enwik8_symbols.gin": _en(128, 0, 20, 2),
    "rmt/txl_enwik8_128.gin+corpora/enwik8_symbols.gin": _en(128, 200),
    "transformer_xl/lstm_151m.gin+corpora/wikitext103_words.gin": CONTEXT_GROUP["LSTM"],
    "transformer_xl/qrnn_151m.gin+corpora/wikitext103_words.gin": CONTEXT_GROUP["QRNN"],
}
"""The commands that the headers of configs/rmt/ and of the networks of Table 6 name."""
