"""A config says what runs: each builds, is read to the last binding, and has the right size."""

import re

import jax
import pytest
from jax.sharding import AbstractMesh
from paths import ROOT
from tiny_run import shared_programs  # noqa: F401  (rows of three corpora are one program)

from brt import config
from brt.experiment import Experiment
from brt.models.counts import count_parameters
from brt.models.transformer_xl import evaluation_memory
from brt.reporting.gin_text import read_gin_file
from brt.reporting.places import model_name

TASKS = "copy|reverse|retrieval|quadratic"
CONFIGS = sorted(path.name for path in (ROOT / "configs").glob("*.gin"))
PUBLISHED = {  # millions of weights outside embeddings, computed from the published dimensions
    r"(pg19|arxiv|github)_(xl_\d+|slide_12l)": 151.0,
    r"(pg19|arxiv|github)_slide_13l": 163.6,
    r"(pg19|arxiv|github)_rec_fixed_skip": 160.4,
    r"(pg19|arxiv|github)_rec_fixed_dual": 168.8,
    r"(pg19|arxiv|github)_rec_fixed_single": 170.9,
    r"(pg19|arxiv)_memorizing_64k": 151.0,
    r"pg19_memorizing_dense_64k": 163.6,
    r"pg19_size_40m_rec": 40.4,
    r"pg19_size_40m_xl": 40.9,
    r"pg19_size_81m_rec": 80.2,
    r"pg19_size_81m_xl": 81.8,
    r"pg19_size_162m_rec": 160.4,
    r"pg19_size_162m_xl": 163.6,
    r"pg19_size_325m_rec": 319.8,
    r"pg19_size_325m_xl": 327.2,
    r"pg19_size_650m_rec": 639.6,
    r"pg19_size_650m_xl": 654.3,
    r"pg19_size_1300m_rec": 1279.3,
    r"pg19_size_1300m_xl": 1308.6,
}


COUNTED = {  # millions of weights, embeddings too; the last three are own choice
    "txl_wt103_base": 151.1,
    "txl_wt103_large": 284.1
    + 1.05,  # the first bin's second projection, which scripts leave untied
    "txl_enwik8_12l": 41.1,
    "txl_enwik8_24l": 277.2,
    "txl_lm1b_base": 466.5,
    "txl_enwik8_18l": 88.0,
    "txl_ablation": 128.0,
    "txl_ptb": 24.0,
}


def build(name, *bindings):
    config.parse([str(ROOT / "configs" / name)], bindings)
    return Experiment.from_gin()


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_builds_reads_every_binding_and_has_the_published_size(name):
    experiment = build(name)
    millions = count_parameters(experiment.model).non_embedding / 1e6
    for pattern, published in PUBLISHED.items():
        if re.fullmatch(pattern, name.removesuffix(".gin")):
            assert millions == pytest.approx(published, rel=0.005)
    if name.removesuffix(".gin") in COUNTED:
        all_of_them = sum(count_parameters(experiment.model)) / 1e6
        assert all_of_them == pytest.approx(COUNTED[name.removesuffix(".gin")], abs=0.1)
    trainer = experiment.trainer
    if re.match("pg19|arxiv", name):
        assert trainer.tokens_per_step == 131_072
    if name.startswith("github"):
        assert trainer.tokens_per_step == 4 * 131_072 and trainer.steps == 250_000


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_says_how_it_is_run_and_what_was_measured(name):
    header = (ROOT / "configs" / name).read_text().split("include")[0]
    if name.startswith("benchmark"):
        assert "BENCHMARKS.md" in header
    else:
        assert name in header or name == "quickstart.gin"
    if re.match(f"pg19|arxiv|github|txl|rmt|memtr|{TASKS}", name):
        assert re.search(r"^# Paper: ", header, re.M) and re.search(r"^# Ours: ", header, re.M)


def test_every_algorithmic_task_has_a_config_of_every_kind_of_memory():
    models = ("baseline", "txl", "rmt", "rec_fixed_skip", "memorizing")
    expected = {f"{task}_{model}.gin" for task in TASKS.split("|") for model in models}
    assert expected <= set(CONFIGS)


def test_every_row_of_table_1_and_both_columns_of_table_4_have_a_config():
    cells = [f"rec_{gate}_{a}" for gate in ("fixed", "lstm") for a in ("dual", "single", "skip")]
    feedback = ["feedback_lstm_single", "feedback_fixed_skip"]
    rows = ["xl_512", "xl_1024", "xl_2048", "slide_12l", "slide_13l", *cells, *feedback]
    expected = [f"{data}_{row}.gin" for data in ("pg19", "arxiv", "github") for row in rows]
    sizes = ("40m", "81m", "162m", "325m", "650m", "1300m")
    expected += ["pg19_memorizing_64k.gin", "arxiv_memorizing_64k.gin"]
    expected += [f"pg19_size_{size}_{kind}.gin" for size in sizes for kind in ("rec", "xl")]
    assert set(expected) <= set(CONFIGS)


def test_counted_once_what_scripts_leave_untied_gives_the_counts_that_are_quoted():
    once = "TransformerXL.tied_projections = True"
    for name, bindings, millions in (
        ("txl_wt103_large.gin", [once], 284.1),
        ("txl_lm1b_base.gin", [once, "TransformerXL.tied = True"], 356.4),
        ("txl_lm1b_large.gin", [once], 839.1),
    ):
        counts = count_parameters(build(name, *bindings).model)
        assert sum(counts) / 1e6 == pytest.approx(millions, abs=0.1)


TESTED = {
    "wt103_base": ["txl_wt103_base"],
    "wt103_large": ["txl_wt103_large"],
    "characters_base": ["txl_enwik8_12l", "txl_text8_base"],
    "characters_large": ["txl_enwik8_18l", "txl_enwik8_24l", "txl_text8_large"],
    "lm1b": ["txl_lm1b_base", "txl_lm1b_large"],
}


@pytest.mark.parametrize(("part", "name"), [(p, n) for p, names in TESTED.items() for n in names])
def test_a_transformer_xl_is_tested_as_its_header_says_with_parameters_it_has(part, name):
    given = f"configs/parts/txl_test_{part}.gin"
    assert given in (ROOT / "configs" / f"{name}.gin").read_text()
    config.parse([str(ROOT / "configs" / f"{name}.gin"), str(ROOT / given)])
    experiment = Experiment.from_gin()
    model = experiment.evaluated_model()
    assert model.same_length and model.period == experiment.evaluation.segment_length
    assert model.memory_length > experiment.model.memory_length


@pytest.mark.parametrize("name", [n for n in CONFIGS if n.startswith("txl_")])
def test_while_training_memory_and_segment_are_evaluated_as_long_as_they_are_trained(name):
    experiment = build(name)
    trained, evaluated = experiment.model, experiment.evaluated_model()
    lengths = trained.memory_length, trained.period, evaluated.period
    assert evaluated.memory_length == evaluation_memory(*lengths)


@pytest.mark.parametrize(
    ("name", "binding"),
    [
        ("pg19_rec_fixed_skip.gin", f"BlockRecurrentTransformer.window = {window}")
        for window in (128, 256)
    ]
    + [("pg19_slide_12l.gin", "BlockRecurrentTransformer.window = 128")]
    + [
        ("pg19_rec_fixed_skip.gin", f"RecurrentCell.num_states = {states}")
        for states in (128, 256, 1024, 2048)
    ],
)  # fmt: skip
def test_the_ablations_of_table_3_are_one_override_away(name, binding):
    build(name, binding)


def test_bytes_are_one_more_file():
    files = [str(ROOT / "configs" / n) for n in ("pg19_slide_12l.gin", "parts/pg19_bytes.gin")]
    config.parse(files)
    experiment = Experiment.from_gin()
    assert experiment.model.vocabulary_size == 260
    assert experiment.trainer.corpus.vocabulary.size == 256


SMALL = (
    "BlockRecurrentTransformer.width = 16",
    "BlockRecurrentTransformer.num_heads = 2",
    "BlockRecurrentTransformer.head_size = 8",
    "BlockRecurrentTransformer.feed_forward_size = 16",
    "BlockRecurrentTransformer.window = 4",
    "BlockRecurrentTransformer.vocabulary_size = 64",
    "Trainer.segment_length = 8",
    "Trainer.tokens_per_step = 64",
)
SMALL_TRANSFORMER_XL = (
    "TransformerXL.num_layers = 2",
    "TransformerXL.width = 16",
    "TransformerXL.num_heads = 2",
    "TransformerXL.head_size = 8",
    "TransformerXL.feed_forward_size = 16",
    "TransformerXL.vocabulary_size = 64",
    "Evaluation.segment_length = 8",
    "Evaluation.tokens_per_step = 64",
    "Trainer.segment_length = 8",
)


def small_relative(name):
    """Bindings that make a model small; None for a `BlockRecurrentTransformer`."""
    settings = read_gin_file(ROOT / "configs" / name)
    model = model_name(settings)
    if model == "BlockRecurrentTransformer":
        return None
    if "TransformerXL.width" not in settings:
        return ("Trainer.tokens_per_step = 256", "Trainer.segment_length = 16")
    small = {
        "TransformerXL.memory_length": 6 if settings["TransformerXL.memory_length"] else 0,
        "TransformerXL.cutoffs": (10, 20),
        "TransformerXL.tied_projections": True,
        "TransformerXL.div_val": 2,
        "RecurrentMemoryTransformer.num_memory": 2,
        "Trainer.tokens_per_step": 64 * settings.get("Trainer.segments_per_step", 1),
    }
    bound = [f"{key} = {value}" for key, value in small.items() if key in settings]
    return (*SMALL_TRANSFORMER_XL, *bound)


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_takes_two_real_steps_at_small_width(name):
    text = (ROOT / "configs" / name).read_text()
    states = ("RecurrentCell.num_states = 3",) if "RecurrentCell" in text else ()
    memory = ("ExternalMemory.size = 8", "ExternalMemory.neighbours = 2")
    memory = memory if re.search("memorizing_layers|parts/memorizing", text) else ()
    small = (*SMALL, *states, *memory)
    if re.match(TASKS, name):  # small enough, if it reads two samples a step
        tokens = {"co": 72, "re": 48, "qu": 180}[name[:2]] * (5 if "120" in name else 1)
        small = (f"Trainer.tokens_per_step = {2 * (10 if 'retrieval' in name else tokens)}",)
    else:
        small = small_relative(name) or small
    experiment = build(name, *small)
    state = experiment.init_state()
    shapes, ids = experiment.abstract_batch(), experiment.model.vocabulary_size
    key = jax.random.key(0)
    batch = shapes._replace(
        inputs_KBT=jax.random.randint(key, shapes.inputs_KBT.shape, 0, ids),
        targets_KBT=jax.random.randint(key, shapes.targets_KBT.shape, 0, ids),
        weights_KBT=jax.numpy.ones(shapes.weights_KBT.shape),
        starts_KB=jax.numpy.ones(shapes.starts_KB.shape, bool),
    )
    step = jax.jit(experiment.train_step)
    for _ in range(2):
        state, metrics = step(state, batch)
    assert bool(metrics.finite) and int(state.step) == 2


def test_the_published_mesh_shapes_divide_the_published_models():
    experiment = build("pg19_rec_fixed_skip.gin")
    for data, model in ((32, 1), (8, 4), (4, 8)):
        experiment.check_mesh(AbstractMesh((data, model), ("data", "model")))
