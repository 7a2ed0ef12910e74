"""feed_forward_size = 0: a layer without an MLP; `rec_without_mlp` of the laws has a reference."""

import functools

import jax
import numpy as np
import pytest
from flax import nnx
from paths import ROOT
from tiny_models import OneKey, drawn, parameters, quick_jit, randomised

from brt.experiment import Configuration
from brt.models.block_recurrent.cell import RecurrentCell
from brt.models.block_recurrent.model import BlockRecurrentTransformer
from brt.models.melodi.model import Melodi
from brt.models.sizes import Sizes
from brt.models.transformer_xl.model import TransformerXL

SIZES = dict(vocabulary_size=11, num_layers=2, width=6, num_heads=2, head_size=4)
MODELS = {
    "block_recurrent": (BlockRecurrentTransformer, dict(window=4)),
    "melodi": (Melodi, dict(window=4, summary=2, short_memory=3)),
    "transformer_xl": (TransformerXL, dict(memory_length=4, norm="pre")),
}
MLP = "feed_forward", "feed_forward_norm"


def keys(path):
    return tuple(entry.key for entry in path)


def logits(model, tokens_BT):
    return quick_jit(lambda: model(tokens_BT, model.init_caches(len(tokens_BT)))[0])()


def flat(tree):
    return [(keys(path), leaf) for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]]


@pytest.mark.parametrize("name", MODELS)
def test_a_layer_without_an_mlp_is_one_whose_mlp_adds_nothing(name):
    build, settings = MODELS[name]
    sized = functools.partial(build, OneKey(), **SIZES, **settings)
    without = randomised(drawn(functools.partial(sized, feed_forward_size=0)), 0)
    model = drawn(functools.partial(sized, feed_forward_size=5))
    plain = parameters(without)
    assert not any(part in layer for layer in plain["layers"].values() for part in MLP)
    copied = dict(flat(plain))
    graph, params = nnx.split(randomised(model, 1), nnx.Param)
    params = nnx.to_pure_dict(params)
    for path, value in flat(params):
        if path not in copied:
            assert path[2] in MLP
            copied[path] = 0 * value if path[-1] in ("output_FD", "output_bias_D") else value
    same = jax.tree_util.tree_map_with_path(lambda path, _: copied[keys(path)], params)
    model = nnx.merge(graph, nnx.State(same))
    tokens_BT = np.random.default_rng(1).integers(0, 11, (3, 8)).astype(np.int32)
    np.testing.assert_allclose(
        logits(without, tokens_BT), logits(model, tokens_BT), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("arrangement", ["dual", "single"])
def test_states_with_an_mlp_need_its_size(arrangement):
    with pytest.raises(ValueError, match=f'arrangement = "{arrangement}" has an MLP'):
        RecurrentCell(OneKey(), Sizes(6, 2, 4, 0), 4, num_states=3, arrangement=arrangement)


@pytest.mark.parametrize("task", ["zoology_64", "zoology_128"])
def test_zoology_has_two_layers_without_mlps_and_full_attention(task):
    files = [str(ROOT / f"configs/{name}.gin") for name in ("task_models/zoology", f"tasks/{task}")]
    experiment = Configuration(files).experiment()
    model, trainer = experiment.evaluated_model(), experiment.trainer
    assert len(model.layers) == 2 and model.vocabulary_size == 8192
    assert model.sizes == Sizes(64, 1, 64, 0)
    assert model.window == trainer.segment_length == trainer.sample_length
    assert trainer.most_scored == trainer.corpus.source.num_pairs
    assert trainer.rows == 256
