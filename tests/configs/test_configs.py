"""Every config builds, has the published parameter count, and contains no unused binding."""

import re
import shlex

import gin
import published_checks
import pytest
from gin_settings import read_gin_files
from header_commands import COMMANDS
from paths import CONFIGS, ROOT
from published_checks import built_once, position_of, settings_of

from brt import config
from brt.bindings.read_bindings import read_bindings
from brt.experiment import Experiment
from brt.models.counts import count_parameters
from brt.pretrained.backbone import PretrainedBackbone
from brt.reporting.gin_text import read_gin
from brt.reporting.papers.published_tables import published_settings, read_paper
from brt.training.sharding import abstract_mesh

PUBLISHED = {  # millions of weights outside embeddings, computed from the published dimensions
    r"(pg19|systems)_(xl_\d+|slide_12l)": 151.0,
    r"(pg19|systems)_slide_13l": 163.6,
    r"(pg19|systems)_rec_fixed_skip": 160.4,
    r"(pg19|systems)_rec_fixed_dual": 168.8,
    r"(pg19|systems)_rec_fixed_single": 170.9,
    r"(pg19|systems)_memorizing_64k": 151.0,
    r"(pg19|systems)_memorizing_dense_64k": 163.6,
    r"(pg19_size|sizes)_40m_rec": 40.4,
    r"(pg19_size|sizes)_40m_xl": 40.9,
    r"(pg19_size|sizes)_81m_rec": 80.2,
    r"(pg19_size|sizes)_81m_xl": 81.8,
    r"(pg19_size|sizes)_162m_rec": 160.4,
    r"(pg19_size|sizes)_162m_xl": 163.6,
    r"(pg19_size|sizes)_325m_rec": 319.8,
    r"(pg19_size|sizes)_325m_xl": 327.2,
    r"(pg19_size|sizes)_650m_rec": 639.6,
    r"(pg19_size|sizes)_650m_xl": 654.3,
    r"(pg19_size|sizes)_1300m_rec": 1279.3,
    r"(pg19_size|sizes)_1300m_xl": 1308.6,
}
COUNTED = {  # millions of weights, embeddings too; the last five are own choice
    "wt103_base": 151.1,
    "wt103_large": 284.1 + 1.05,  # the first bin's second projection, which scripts leave untied
    "characters_12l": 41.1,
    "characters_24l": 277.2,
    "lm1b_base": 466.5,
    "characters_18l": 88.0,
    "ablation": 128.0,
    "ptb": 24.0,
    "lstm_151m": 151.1,
    "qrnn_151m": 151.1,
}


OF_READERS = {
    "bert": 108_311_810,
    "roberta": 124_647_170,
    "deberta": 184_423_682,
    "t5": 222_903_552,
    "roberta_spans": 124_055_040 + 2 * 769 + 3 * 769,
    "roberta_spans_pooled": 124_055_040 + 2 * 769 + 3 * 769 + 2 * 768 * 769,
}
"""Parameters of published encoders with a head for two classes, or for spans and three kinds of
answers, and of T5; without memory tokens."""
OF_BODIES = {"gpt2_small": 124_439_808, "smollm2_135m": 134_515_008}
"""Parameters of the published bodies, by their files in configs/bodies/."""


def body_name(name):
    """The file of configs/bodies/ that a config includes."""
    return re.search(r'^include "configs/bodies/(\w+)\.gin"', (CONFIGS / name).read_text(), re.M)[1]


def body_size(model):
    """Parameters of the pretrained body in a model."""
    while not isinstance(model, PretrainedBackbone):
        model = model.body
    return sum(count_parameters(model))


SYSTEMS = (
    *("systems", "sizes", "transformer_xl", "rmt", "small", "short"),
    *("pretrained", "readers", "task_models", "pretrained_tasks"),
)
"""Folders whose configs bring a model and no corpus."""


every_memory_of_text = pytest.mark.parametrize(
    "name",
    [
        name
        for name in COMMANDS
        if name.startswith("transformer_xl/")
        and "TransformerXL.memory_length" in (CONFIGS / name).read_text()
    ],
)


def built(name, *bindings):
    """The experiment of a config's command with further bindings; losses untraced."""
    files, bound = COMMANDS[name]
    return built_once(files, (*bound, *bindings))


@pytest.mark.parametrize("name", COMMANDS)
def test_a_configs_command_builds_at_the_published_size(name):
    counts = count_parameters(built(name).model)
    short = name.removesuffix(".gin").replace("/", "_")
    for pattern, published in PUBLISHED.items():
        if re.fullmatch(pattern, short):
            assert counts.non_embedding / 1e6 == pytest.approx(published, rel=0.005)
    if name.startswith("readers/"):
        memory = getattr(built(name).model, "memory_SD", None)
        without = sum(counts) - (0 if memory is None else memory.size)
        assert without == OF_READERS[short.removeprefix("readers_")]
    if name == "pretrained/gpt2_pooled.gin":
        network = 768 * 200 + 2 * 200 * 200 + 200 * 768 + 3 * 200 + 768
        assert network == 388_568 and counts.recurrence == network + 12  # a weight a layer
    if name.startswith("pretrained/"):
        assert body_size(built(name).model) == OF_BODIES[body_name(name)]
    if name.startswith("transformer_xl/") and (millions := COUNTED.get(short[15:])):
        assert sum(counts) / 1e6 == pytest.approx(millions, abs=0.1)


@pytest.mark.parametrize("window", range(200, 601, 100))
@pytest.mark.parametrize("name", ["gpt2", "gpt2_pooled"])
def test_a_published_window_takes_one_override(name, window):
    trainer = built(
        f"pretrained/{name}.gin",
        f"Trainer.segment_length = {window}",
        "GPT2.num_layers = 2",  # builds faster
    ).trainer
    tokens = trainer.steps * trainer.rows * trainer.segments_per_step * trainer.segment_length
    assert tokens == pytest.approx(236.4e6, rel=1e-3)  # two epochs


def test_every_experiment_or_system_has_its_command():
    expected = {p.name for p in CONFIGS.glob("*.gin")}
    for folder in SYSTEMS:
        expected |= {f"{folder}/{p.name}" for p in CONFIGS.glob(f"{folder}/*.gin")}
    tests = {name for name in expected if "/test_" in name}
    assert expected - tests <= COMMANDS.keys()
    for name in expected - tests:
        assert name == "quickstart.gin" or any(f"/{name}" in file for file in COMMANDS[name][0])


def test_every_config_that_the_code_names_exists():
    files = [*(ROOT / "brt").rglob("*.py"), *(ROOT / "scripts").rglob("*.py")]
    named = {
        config: file
        for file in files
        for config in re.findall(r"configs/[\w/]+\.gin", file.read_text(encoding="utf-8"))
    }
    assert len(named) > 9
    assert {config: file for config, file in named.items() if not (ROOT / config).exists()} == {}


# Systems and corpora.


CORPORA = sorted({path.stem for path in CONFIGS.glob("corpora/*.gin")} - {"own_text"})
"""own_text.gin is completed by --text."""


@pytest.mark.parametrize("corpus", CORPORA)
def test_any_corpus_completes_any_system(corpus):
    file = f"{CONFIGS}/corpora/{corpus}.gin"
    others = ("small/txl", "small/lstm") if corpus == "text" else ()
    for system in ("small/rec_fixed_skip", *others):
        files = f"{CONFIGS}/{system}.gin", file
        experiment = built_once(files)
        bound = read_gin_files([file])
        size = 256 if corpus == "text" else bound["vocabulary_size"]
        assert experiment.model.vocabulary_size == size
        assert str(experiment.trainer.corpus.store) == bound["Corpus.store"]


@pytest.mark.parametrize("system", ["systems/rec_fixed_skip", "transformer_xl/wt103_large"])
def test_ones_own_text_is_one_flag_on_a_published_system(system):
    experiment = built_once((f"{CONFIGS}/{system}.gin", f"{CONFIGS}/corpora/text.gin"))
    assert experiment.model.vocabulary_size == 256
    assert experiment.trainer.corpus.source.path == "text/{split}"


def test_joined_files_are_read_one_after_another():
    files = [f"{CONFIGS}/{name}.gin" for name in ("systems/slide_12l", "recipes/github")]
    bindings = []
    for given in (("+".join(files),), files):
        assert published_checks.built(given).trainer.tokens_per_step == 524_288
        bindings.append((gin.config_str(), read_bindings()))
    assert bindings[0] == bindings[1]


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        (["systems/rec_fixed_skip"], r"%vocabulary_size has no value.*corpora/text\.gin"),
        (["task_models/rmt_4x128", "corpora/text"], r"%segment_length has no value.*tasks/"),
        (["pg19_slide_12l", "corpora/text"], r"TfdsText\.name is bound.*--gin_file"),
    ],
)
def test_a_half_or_a_corpus_too_many_is_said_in_a_sentence(files, sentence):
    with pytest.raises(config.ConfigError, match=sentence):
        config.parse([f"{CONFIGS}/{file}.gin" for file in files])
        Experiment.from_gin()


def test_a_number_in_place_of_the_corpus_s_macro_is_said():
    files = [f"{CONFIGS}/{name}.gin" for name in ("systems/slide_12l", "corpora/text")]
    config.parse(files, ["BlockRecurrentTransformer.vocabulary_size = 300"])
    with pytest.raises(config.ConfigError, match="The macro vocabulary_size is bound, but nothing"):
        Experiment.from_gin()


def test_bytes_are_one_more_file():
    names = ("pg19_slide_12l.gin", "corpora/pg19_bytes.gin")
    experiment = built_once(tuple(f"{CONFIGS}/{name}" for name in names))
    assert experiment.model.vocabulary_size == 260
    assert experiment.trainer.corpus.vocabulary.size == 256


# Evaluation.


def test_untied_parameters_counted_once_give_the_quoted_counts():
    once = "TransformerXL.tied_projections = True"
    for name, bindings, millions in (
        ("wt103_large", (once,), 284.1),
        ("lm1b_base", (once, "TransformerXL.tied = True"), 356.4),
        ("lm1b_large", (once,), 839.1),
    ):
        counts = count_parameters(built(f"transformer_xl/{name}.gin", *bindings).model)
        assert sum(counts) / 1e6 == pytest.approx(millions, abs=0.1)


@every_memory_of_text
def test_a_transformer_xl_is_tested_as_its_header_says(name):
    header = (CONFIGS / name).read_text().replace("\\\n#", " ")
    line = re.search(r"^# Test: +python -m brt\.evaluate (.*)", header, re.M)
    if not line:
        assert re.search("ablation|ptb", name)
        return
    given = re.search(r"configs/(\S+/test_\w+\.gin)", line[1])[1]
    more = [word[6:] for word in shlex.split(line[1]) if word.startswith("--gin.Evaluation.tokens")]
    tested = read_gin_files([CONFIGS / given]) | read_gin("\n".join(more))
    _, position = position_of(settings_of(name))
    published = published_settings(read_paper("transformer_xl").settings["tests"], position)
    assert len(published) == 6 and {key: tested.get(key) for key in published} == published
    files, bindings = COMMANDS[name]
    bindings = (*bindings, *more)
    experiment = built_once((*files, str(CONFIGS / given)), bindings)
    model = experiment.evaluated_model()
    assert model.same_length and model.period == experiment.evaluation.segment_length
    assert model.memory_length > experiment.model.memory_length


@every_memory_of_text
def test_memory_and_segment_are_evaluated_as_they_are_trained(name):
    experiment = built(name)
    trained, evaluated = experiment.model, experiment.evaluated_model()
    lengths = {model.memory_length + model.period for model in (trained, evaluated)}
    assert len(lengths) == 1


def test_the_published_mesh_shapes_divide_the_published_models():
    experiment = built("pg19_rec_fixed_skip.gin")
    for data, model in ((32, 1), (8, 4), (4, 8)):
        experiment.check_mesh(abstract_mesh((data, model), data * model))
