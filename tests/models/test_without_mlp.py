"""feed_forward_size = 0: a layer without an MLP; `rec_without_mlp` of the laws has a reference."""

import functools

import numpy as np
import pytest
from flax import nnx
from flax.traverse_util import flatten_dict, unflatten_dict
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


def logits(model, tokens_BT):
    return quick_jit(lambda: model(tokens_BT, model.init_caches(len(tokens_BT)))[0])()


@pytest.mark.parametrize("name", MODELS)
def test_a_layer_without_an_mlp_is_one_whose_mlp_adds_nothing(name):
    build, settings = MODELS[name]
    sized = functools.partial(build, OneKey(), **SIZES, **settings)
    without = drawn(functools.partial(sized, feed_forward_size=0))
    model = randomised(drawn(functools.partial(sized, feed_forward_size=5)), 1)
    params = flatten_dict(parameters(model))
    of_mlp = {path: value for path, value in params.items() if {*path} & {*MLP}}
    zeros = {path: 0 * value for path, value in of_mlp.items() if path[-1].startswith("output")}
    assert len(zeros) >= len(model.layers)
    nnx.update(model, nnx.State(unflatten_dict(params | zeros)))
    others = unflatten_dict({path: params[path] for path in params.keys() - of_mlp.keys()})
    without = nnx.merge(nnx.graphdef(without), nnx.State(others))
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
