"""Every config takes two real steps, its model made small."""

import jax
import pytest
from gin_settings import bound, read_gin_files
from header_commands import COMMANDS

from brt import config
from brt.experiment import Experiment
from brt.reporting.gin_text import resolved
from brt.reporting.model_settings import model_name

SMALL = (
    "BlockRecurrentTransformer.width = 16",
    "BlockRecurrentTransformer.num_heads = 2",
    "BlockRecurrentTransformer.head_size = 8",
    "BlockRecurrentTransformer.feed_forward_size = 16",
    "BlockRecurrentTransformer.window = 4",
    "vocabulary_size = 64",
    "Trainer.segment_length = 8",
    "Trainer.tokens_per_step = 64",
)
SMALL_TRANSFORMER_XL = (
    *bound("TransformerXL", num_layers=2, width=16, num_heads=2, head_size=8, feed_forward_size=16),
    "vocabulary_size = 64",
    *bound("Evaluation", segment_length=8, tokens_per_step=64),
    "Trainer.segment_length = 8",
)


def small_pretrained(settings, body):
    """Bindings that make a pretrained body and the memories around it small."""
    body = str(body).removeprefix("@")
    small = {
        f"{body}.num_layers": 3,
        f"{body}.width": 16,
        f"{body}.num_heads": 2,
        f"{body}.num_positions": 64,
        f"{body}.num_key_heads": 1,
        f"{body}.feed_forward_size": 16,
        "SlidingLanguageModel.window": 4,
        "CellMemory.layer_index": 1,
        "vocabulary_size": 64,
        "PooledMemory.hidden": (8,),
        "RecurrentMemoryTransformer.num_memory": 2,
        "RecurrentCell.num_states": 3,
        "Trainer.segments_per_step": 2,
        "Trainer.segment_length": 8,
        "Trainer.tokens_per_step": 64,
    }
    return tuple(f"{key} = {value}" for key, value in small.items() if key in settings)


def small_reader(settings):
    """Bindings that make a reader small."""
    body = str(settings["PretrainedReader.body"]).removeprefix("@")
    small = {
        f"{body}.num_layers": 2,
        f"{body}.width": 16,
        f"{body}.num_heads": 2,
        f"{body}.head_size": 8,
        f"{body}.feed_forward_size": 24,
        f"{body}.num_positions": 34,
        f"{body}.vocabulary_size": 64,
        "PretrainedReader.num_memory": 2,
        "FinalLayerMemory.hidden": (8,),
        "Trainer.segments_per_step": 2,
        "Trainer.segment_length": 8,
        "Trainer.tokens_per_step": 64,
    }
    return tuple(f"{key} = {value}" for key, value in small.items() if key in settings)


def small_bindings(name):
    """Bindings that make the model of a config small."""
    settings = resolved(read_gin_files(COMMANDS[name][0]))
    if name.startswith(("task_models", "pretrained_tasks")):  # small enough with two samples a step
        segments = settings.get("Trainer.segments_per_step", 1)
        return (f"Trainer.tokens_per_step = {2 * segments * settings['Trainer.segment_length']}",)
    if "BlockRecurrentTransformer.width" in settings:
        states = ("RecurrentCell.num_states = 3",) * ("RecurrentCell.num_states" in settings)
        memory = ("ExternalMemory.size = 8", "ExternalMemory.neighbours = 2")
        if "ExternalMemory.neighbours" not in settings:
            memory = memory[:1]
        memory *= "ExternalMemory.size" in settings
        tokens = ("RecurrentMemoryTransformer.num_memory = 2",)
        tokens *= "RecurrentMemoryTransformer.num_memory" in settings
        return (*SMALL, *states, *memory, *tokens)
    if "PretrainedReader.body" in settings:
        return small_reader(settings)
    for model in ("PretrainedLanguageModel", "SlidingLanguageModel"):
        if f"{model}.body" in settings:
            return small_pretrained(settings, settings[f"{model}.body"])
    if "TransformerXL.width" not in settings:
        network = model_name(settings)
        small = {
            f"{network}.width": 16,
            f"{network}.hidden_size": 24,
            f"{network}.cutoffs": (10, 20),
            f"{network}.window": 4,
            f"{network}.num_heads": 2,
            f"{network}.head_size": 8,
            f"{network}.feed_forward_size": 16,
            "vocabulary_size": 64,
            "Evaluation.tokens_per_step": 256,
            "Trainer.tokens_per_step": 256,
            "Trainer.segment_length": 16,
        }
        return tuple(f"{key} = {value}" for key, value in small.items() if key in settings)
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
@pytest.mark.parametrize("name", COMMANDS)
def test_a_config_takes_two_real_steps_at_small_width(name):
    files, bindings = COMMANDS[name]
    config.parse(files, [*bindings, *small_bindings(name)])
    experiment = Experiment.from_gin()
    state = experiment.init_state()
    shapes, ids = experiment.abstract_batch(), experiment.model.vocabulary_size
    answers = getattr(experiment.model, "num_classes", None) or ids
    if getattr(experiment.model, "targets", None) == "spans":
        answers = 3  # valid both as kinds of answers and as positions in a segment
    key = jax.random.key(0)
    batch = shapes._replace(
        inputs_KBT=jax.random.randint(key, shapes.inputs_KBT.shape, 0, ids),
        targets_KBT=jax.random.randint(key, shapes.targets_KBT.shape, 0, answers),
        weights_KBT=jax.numpy.ones(shapes.weights_KBT.shape),
        starts_KB=jax.numpy.ones(shapes.starts_KB.shape, bool),
    )
    step = jax.jit(experiment.train_step)
    for _ in range(2):
        state, metrics = step(state, batch)
    assert bool(metrics.finite) and int(state.step) == 2
