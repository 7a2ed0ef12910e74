"""Published hyperparameters of encoders and T5 with memory, as in `published_numbers`.

The Recurrent Memory Transformer paper names models, memory and segments; its script
finetune_hyp_rmt.sh (booydar/rmt_experiments) the training of BERT, and finetune_hyp_rmt_enc_dec.sh
that of T5.
"""

from published_numbers import Numbers, own, ref, told

BASE = {"num_layers": 12, "width": 768, "num_heads": 12, "feed_forward_size": 3072}
BODIES = {
    "BERT": told(
        "bert-base-cased config.json",
        {"vocabulary_size": 28_996, "num_positions": 512, **BASE},
    ),
    "RoBERTa": told(
        "roberta-base config.json",
        {"vocabulary_size": 50_265, "num_positions": 514, **BASE},
    ),
    "DeBERTa": told(
        "deberta-v3-base config.json",
        {
            "vocabulary_size": 128_100,
            "num_positions": 512,
            "absolute_positions": False,
            "buckets": 256,
            "shared_keys": True,
            "norm_relative": True,
            **BASE,
        },
    ),
    "T5": told("t5-base config.json", {"vocabulary_size": 32_128, "head_size": 64, **BASE}),
}
FOLDERS = {
    "BERT": "bert-base-cased",
    "RoBERTa": "roberta-base",
    "DeBERTa": "deberta-v3-base",
    "T5": "t5-base",
}
TRAINING = told(
    "finetune_hyp_rmt.sh",
    {
        "Trainer.optimizer": ref("adamw"),
        "adamw.weight_decay": 1e-3,
        "adamw.clip_value": 5.0,
        "Trainer.schedule": ref("linear"),
        "linear.maximum": 1e-5,
        "linear.warmup_steps": 100,
        "Trainer.tokens_per_step": 16_064,  # 16 documents of 2 segments
    },
) | told("finetune_hyp.sh", {"CheckpointPolicy.keep_best": True, "CheckpointPolicy.patience": 10})
TRAINING |= own(
    {
        "Trainer.steps": 1000,
        "Trainer.stream": "labelled",
        "Trainer.labelled": ref("LabelledDocuments()"),
        "Trainer.remat_segments": True,
        "Trainer.eval_every": 50,
        "Trainer.evaluation": ref("Evaluation()"),
        "Trainer.checkpoints": ref("CheckpointPolicy()"),
        "CheckpointPolicy.every": 100,
        "Trainer.model": ref("PretrainedReader"),
    }
)
SEGMENTS = told(
    "section 4; modeling_rmt/base.py",
    {
        "PretrainedReader.num_memory": 10,
        "Trainer.segment_length": 502,
        "Trainer.segments_per_step": 2,
    },
)
NEWS = own(
    {
        "Trainer.corpus": ref("Corpus()"),
        "Corpus.store": "stores/hyperpartisan",
        "Corpus.source": ref("Hyperpartisan()"),
        "Hyperpartisan.path": "data/hyperpartisan",
    }
)
WORDS = told("section 4: the label's word", {"PretrainedReader.targets": "words"}) | own(
    {
        "LabelledDocuments.targets": "words",
        "LabelledDocuments.words": 4,
        "PretrainedReader.words": 4,
    }
)
T5_RATE = told("finetune_hyp_rmt_enc_dec.sh", {"linear.maximum": 1e-4})


def model(body: str, *parts: Numbers) -> Numbers:
    """The numbers of a reader around this body, on Hyperpartisan news."""
    sizes = {f"{body}.{name}": number for name, number in BODIES[body].items()}
    found = TRAINING | SEGMENTS | NEWS | sizes
    found |= own({"PretrainedReader.body": ref(body)})
    found |= own({"Hyperpartisan.vocabulary": f"pretrained:models/{FOLDERS[body]}"})
    for part in parts:
        found |= part
    return found


QUESTIONS = told(
    "Adding Recurrence to Pretrained Transformers, section 5.4",
    {
        "HotpotQA.questions": 30_000,
        "Trainer.steps": 4 * 30_000 // 16,
        "linear.maximum": 2e-5,
        "Trainer.segment_length": 512,
        "PretrainedReader.targets": "spans",
        "LabelledDocuments.targets": "spans",
    },
) | own(
    {
        "Trainer.optimizer": ref("adamw"),
        "Trainer.schedule": ref("linear"),
        "linear.warmup_steps": 100,
        "Trainer.segments_per_step": 6,
        "Trainer.tokens_per_step": 16 * 6 * 512,
        "LabelledDocuments.alignment": "left",
        "Trainer.stream": "labelled",
        "Trainer.labelled": ref("LabelledDocuments()"),
        "Trainer.remat_segments": True,
        "Trainer.eval_every": 1875,
        "Trainer.evaluation": ref("Evaluation()"),
        "Trainer.checkpoints": ref("CheckpointPolicy()"),
        "CheckpointPolicy.every": 500,
        "Trainer.model": ref("PretrainedReader"),
        "PretrainedReader.body": ref("RoBERTa"),
        "Trainer.corpus": ref("Corpus()"),
        "Corpus.store": "stores/hotpotqa",
        "Corpus.source": ref("HotpotQA()"),
        "HotpotQA.path": "data/hotpotqa/hotpot_{split}.json",
        "HotpotQA.splits": {"train": "train_v1.1", "validation": "dev_distractor_v1"},
        "HotpotQA.vocabulary": "pretrained:models/roberta-base",
    }
)
QUESTIONS |= {f"RoBERTa.{name}": number for name, number in BODIES["RoBERTa"].items()}
FINAL_LAYER = told(
    "section 5.4", {"FinalLayerMemory.layer": 2, "FinalLayerMemory.hidden": (768,)}
) | own({"PretrainedReader.memories": (ref("FinalLayerMemory"),)})

HEADERS = {
    "readers/roberta_spans.gin+labelled/hotpotqa.gin": QUESTIONS,
    "readers/roberta_spans_pooled.gin+labelled/hotpotqa.gin": QUESTIONS | FINAL_LAYER,
    "readers/bert.gin+labelled/hyperpartisan.gin": model("BERT"),
    "readers/roberta.gin+labelled/hyperpartisan.gin": model("RoBERTa"),
    "readers/deberta.gin+labelled/hyperpartisan.gin": model("DeBERTa"),
    "readers/t5.gin+labelled/hyperpartisan.gin": model("T5", WORDS, T5_RATE),
}


def _segments(name, count):
    """A row of Table 3: a reader, and segments of an article."""
    body = {"bert": "BERT", "roberta": "RoBERTa", "deberta": "DeBERTa", "t5": "T5"}[name]
    of_row = told("table 3", {"Trainer.segments_per_step": count})
    of_row |= own(
        {
            "Trainer.tokens_per_step": 16 * 502 * count,
            "Corpus.store": f"stores/hyperpartisan_{name}",
        }
    )
    return model(body, *([WORDS, T5_RATE] if body == "T5" else []), of_row)


SWEEPS = {
    "rmt_table_3": [
        _segments(name, count)
        for name in ("bert", "roberta", "deberta", "t5")
        for count in range(1, 5)
    ]
}
