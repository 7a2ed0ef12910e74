"""Recipes of the Transformer-XL and the RMT paper's numbers, as far as they are known.

Sources: the released scripts of Transformer-XL, and for its ablations, which no script has, the
assumptions of configs/transformer_xl/ablation.gin; section 4 and appendix A of the RMT paper with
its released logs and scripts. What neither says, as the dimensions of the models of Penn Treebank,
of Hyperpartisan news and of other networks, is an assumption of brt's configs.
"""

from typing import Any

from brt.reporting.gin_text import Reference
from brt.reporting.papers.adding_recurrence import LABELLED, pretrained

_ADAM = {"Trainer.optimizer": Reference("@adamw"), "adamw.clip_norm": 0.25}
_COSINE = {
    "Trainer.schedule": Reference("@cosine"),
    "cosine.maximum": 0.00025,
    "cosine.minimum": 0.0,
    "cosine.warmup_steps": 0,
}
_TEXT = _ADAM | _COSINE | {"Trainer.stream": "contiguous", "TransformerXL.dropout": 0.1}


def _lengths(length):
    return {"Trainer.segment_length": length, "TransformerXL.memory_length": length}


def _sizes(layers, width, num_heads, head_size, feed_forward_size):
    return {
        "TransformerXL.num_layers": layers,
        "TransformerXL.width": width,
        "TransformerXL.num_heads": num_heads,
        "TransformerXL.head_size": head_size,
        "TransformerXL.feed_forward_size": feed_forward_size,
    }


_CHARACTERS = _lengths(768) | {
    "Trainer.steps": 400_000,
    "Trainer.tokens_per_step": 49_152,
    "cosine.warmup_steps": 4000,
    "TransformerXL.dropout": 0.15,
    "TransformerXL.attention_dropout": 0.15,
}
_BUDGET_151M = {
    "Trainer.steps": 200_000,
    "Trainer.tokens_per_step": 9000,
    "Trainer.segment_length": 150,
}
OF_SIZE = {
    "151M": _lengths(150) | _BUDGET_151M,
    "257M": _lengths(384)
    | {
        "Trainer.steps": 4_000_000,
        "Trainer.tokens_per_step": 49_152,
        "cosine.warmup_steps": 16_000,
        "TransformerXL.dropout": 0.2,
        "TransformerXL.attention_dropout": 0.2,
        "TransformerXL.div_val": 4,
        "TransformerXL.tied_projections": (False, True, True, True),
    },
    "41M": _lengths(512) | {"Trainer.steps": 400_000, "Trainer.tokens_per_step": 11_264},
    "277M": _CHARACTERS | _sizes(24, 1024, 8, 128, 3072),
    "88M": _CHARACTERS | _sizes(18, 640, 10, 64, 2208),
    "24M": _lengths(70)
    | _sizes(12, 384, 8, 48, 1216)
    | {
        "Trainer.steps": 100_000,
        "Trainer.tokens_per_step": 1400,
        "Trainer.average": Reference("@WeightAverage"),
        "TransformerXL.dropout": 0.5,
        "TransformerXL.variational_dropout": True,
    },
    "0.46B": _lengths(32)
    | {
        "Trainer.stream": "shuffled",
        "Trainer.steps": 500_000,
        "Trainer.tokens_per_step": 7168,
        "cosine.warmup_steps": 20_000,
        "TransformerXL.dropout": 0.0,
        "TransformerXL.div_val": 4,
        "TransformerXL.tied": False,
        "TransformerXL.tied_projections": False,
    },
    "128M": _lengths(128) | {"Trainer.steps": 200_000},
}
"""By the size that the tables print; of the ablations, 128M, the batch is not known."""
_NETWORKS = {"LSTM": (2, 2794), "QRNN": (4, 1656)}
"""Layers and hidden size of the other networks of Table 6, of width 410."""


def transformer_xl(position: Any) -> dict:
    """Returns the settings of the Transformer-XL paper for the position of a run in its tables."""
    size = position.size
    if position.system in _NETWORKS:
        layers, hidden = _NETWORKS[position.system]
        of_network = {"num_layers": layers, "width": 410, "hidden_size": hidden, "dropout": 0.1}
        own = {f"{position.system}.{name}": value for name, value in of_network.items()}
        return _ADAM | _COSINE | {"Trainer.stream": "contiguous"} | _BUDGET_151M | own
    if position.corpus == "Penn Treebank":
        size = "24M"
    elif position.corpus == "enwik8" and position.layers in (18, 24):
        size = "88M" if position.layers == 18 else "277M"
    own = OF_SIZE.get(size, {})
    if position.system == "Baseline":
        own = own | {"TransformerXL.memory_length": 0}
    return _TEXT | own


TOKENS_PER_STEP = {150: 9000, 50: 6400, 512: 11_264, 128: 8192}
"""Of the RMT paper's language models, by the length of their segments: 60, 128, 22 and 64 rows."""


_FIRST_MEMORY = {"RecurrentMemoryTransformer.initial_rows": "identical"}


def recurrent_memory(position: Any) -> dict:
    """Returns the settings of Tables 2, 4 and 5 of the RMT paper, for the position of a run."""
    own: dict[str, Any] = {
        "Trainer.steps": 400_000,
        "Trainer.reread_segments": position.bptt_depth,
    }
    if position.segment_length in TOKENS_PER_STEP:
        own["Trainer.tokens_per_step"] = TOKENS_PER_STEP[position.segment_length]
    if position.memory_tokens:
        own |= _FIRST_MEMORY
    if position.system == "Tr-XL + RMT":
        own["RecurrentMemoryTransformer.auxiliary_weight"] = 0.01
    return _TEXT | own


def quadratic(position: Any) -> dict:
    """Returns the settings of Table 1 of the RMT paper, for the position of a run."""
    sizes: dict[str, Any] = {"num_layers": 6, "num_heads": 6, "head_size": 64, "width": 128}
    sizes |= {"feed_forward_size": 256, "dropout": 0.1}
    first_memory = _FIRST_MEMORY if position.memory_tokens else {}
    own = {
        "Trainer.schedule": Reference("@constant_rate"),
        "constant_rate.value": 1e-4,
        "constant_rate.warmup_steps": 0,
        "Trainer.plateau": Reference("@ReduceOnPlateau"),
        "ReduceOnPlateau.factor": 0.5,
        "ReduceOnPlateau.patience": 10,
        "ReduceOnPlateau.floor": 1e-6,
        "Trainer.stream": "samples",
        "Trainer.steps": 600_000,
        "Trainer.segment_length": 180 if position.system == "Baseline" else 30,
        "Trainer.tokens_per_step": 5760,
    }
    own |= {f"TransformerXL.{name}": size for name, size in sizes.items()}
    return _ADAM | first_memory | own


_READERS = {
    "RMT BERT": ("BERT", 1e-5),
    "RMT RoBERTa": ("RoBERTa", 1e-5),
    "RMT DeBERTa": ("DeBERTa", 1e-5),
    "RMT T5": ("T5", 1e-4),
}
"""Body and rate of the published scripts, by system."""


def hyperpartisan(position: Any) -> dict:
    """Returns the settings of Table 3 of the RMT paper, for the position of a run."""
    body, rate = _READERS[position.system]
    own = pretrained("PretrainedReader", body) | {
        "Trainer.optimizer": Reference("@adamw"),
        "adamw.weight_decay": 1e-3,
        "adamw.clip_value": 5.0,
        "Trainer.schedule": Reference("@linear"),
        "linear.maximum": rate,
        "linear.warmup_steps": 100,
        **LABELLED,
        "Hyperpartisan.split_file": "hp-splits.json",
        "Trainer.steps": 1000,
        "Trainer.segment_length": 502,
        "Trainer.tokens_per_step": 16 * 502 * position.segments,
    }
    if body == "T5":
        for part in ("PretrainedReader", "LabelledDocuments"):
            own |= {f"{part}.targets": "words", f"{part}.words": 4}
    return own
