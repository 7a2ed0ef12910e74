"""The released Transformer-XL and Recurrent Memory Transformer, read into brt and replayed.

Their recordings are replayed by test_recordings.py, those of the references here.
"""

import functools
import json

import numpy as np
import pytest
import rmt_numpy
import txl_numpy
from tiny_models import read_segment
from txl_numpy import SETTINGS, released_params

from brt.models.checkpoints.transformer_xl import UnsupportedCheckpoint, load

LONG = dict(reset_length=[4, 0, 11])  # grows 4, 8, then is cut at 11
VARIANTS = {
    "attn0": {},
    "attn1": dict(attn_type=1),
    "attn2": dict(attn_type=2),
    "attn3": dict(attn_type=3, d_head=3),
    "prelnorm": dict(pre_lnorm=True),
    "mem0": dict(mem_len=0),
    "attn0_mem": LONG,
    "attn1_mem": dict(attn_type=1) | LONG,
    "attn2_mem": dict(attn_type=2) | LONG,
    "same_length": dict(same_length=True),
    "mem_same_clamp": dict(same_length=True, clamp_len=5) | LONG,
    "attn1_clamp": dict(attn_type=1, clamp_len=3),
    "attn2_clamp": dict(attn_type=2, clamp_len=3) | LONG,
    "adaptive_div1": dict(cutoffs=[3, 6]),
    "adaptive_div2": dict(cutoffs=[3, 6], div_val=2, tie_projs=[False, True, True]),
    "untied": dict(cutoffs=[4], div_val=2, tie_projs=[False, False], tie_weight=False),
}
MEMORY = dict(num_mem_tokens=3, mem_at_end=True, read_mem_from_cache=False, mem_len=0)
OF_RMT = {
    "mem": {},
    "cache": dict(mem_len=5),
    "cache_grows": dict(mem_len=19),
    "reads_cache": dict(mem_len=5, read_mem_from_cache=True),
    "begin_only": dict(mem_at_end=False),
    "begin_only_cache": dict(mem_at_end=False, mem_len=5, read_mem_from_cache=True),
}


@functools.cache
def recording(variant, artefacts=True):
    config = SETTINGS | VARIANTS[variant]
    rng = np.random.default_rng(1)
    tokens, targets = rng.integers(0, config["n_token"], (2, 4, config["tgt_len"], 2))
    # Frequent and rare words, whatever the bins: none is missed.
    targets[0] = np.resize(np.arange(config["n_token"]), targets[0].shape)
    return txl_numpy.record(config, released_params(config), tokens, targets, artefacts)


@functools.cache
def of_rmt(variant):
    config = SETTINGS | MEMORY | OF_RMT[variant]
    rng = np.random.default_rng(1)
    params = released_params(config)
    for name in params:  # positions matter, so that a wrong one shows
        if "r_net" in name or name == "r_r_bias":
            params[name] = 4 * params[name]
    memory = rng.normal(size=(config["num_mem_tokens"], 1, config["d_model"]))
    tokens, targets = rng.integers(0, config["n_token"], (2, 4, config["tgt_len"], 2))
    return rmt_numpy.record(config, params | {"mem_tokens": np.float32(memory)}, tokens, targets)


def parts(recorded):
    """Released parameters and settings."""
    params = {key[7:]: value for key, value in recorded.items() if key.startswith("params/")}
    return params, json.loads(str(recorded["config_json"]))


@pytest.mark.parametrize("variant", ["attn2_mem", "attn3"])
def test_positions_are_added_once_unless_parameters_are_released(variant):
    clean = recording(variant, artefacts=False)
    model = load(*parts(clean))
    model.published_artefacts = False
    caches = model.init_caches(2)
    for tokens_TB, logits_TBV in zip(clean["tokens"], clean["logits"]):
        logits_BTV, caches = read_segment(model, tokens_TB.T, np.zeros(2, bool), caches)
        found_TBV = np.swapaxes(logits_BTV, 0, 1)
        np.testing.assert_allclose(found_TBV, logits_TBV, rtol=0, atol=2e-5)
    assert np.abs(clean["logits"] - recording(variant)["logits"]).max() > 1e-2


def test_future_positions_are_true_unless_of_released_code():
    params, config = parts(of_rmt("mem"))
    model = load(params, config)
    first = of_rmt("mem")["tokens"][0].T
    read = functools.partial(read_segment, model, first, np.zeros(2, bool), model.init_caches(2))
    published, _ = read()
    model.body.published_artefacts = False
    clean, _ = read()
    assert np.abs(published - clean).max() > 1e-2
    expected = rmt_numpy.record(config, params, *[first.T[None]] * 2, artefacts=False)["logits"]
    np.testing.assert_allclose(np.swapaxes(clean, 0, 1), expected[0], rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    ("made", "variant"),
    [*((recording, name) for name in VARIANTS), *((of_rmt, name) for name in OF_RMT)],
)
def test_parameters_and_settings_get_to_the_right_places(check, made, variant):
    assert check(made(variant)) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"r_w_bias": None}, "r_w_bias"),
        ({"layers.7.dec_attn.o_net.weight": np.zeros((6, 8))}, r"counterpart for \['layers\.7\."),
        ({"crit.out_layers.0.weight": np.zeros((11, 6))}, r"counterpart for \['crit\."),
        ({"r_r_bias": np.zeros((3, 4))}, "'r_r_bias' has shape"),
        (dict(d_embed=4), "d_embed"),
        (dict(ext_len=2), "ext_len"),
        (dict(attn_type=4), "attn_type is 4"),
        (dict(cutoffs=[5, 3]), "cutoffs"),
    ],
)
def test_what_has_no_place_is_refused_by_name(change, message):
    params, config = parts(recording("attn0"))
    (name,) = change
    (params if name in params or "." in name else config).update(change)
    params = {name: value for name, value in params.items() if value is not None}
    with pytest.raises(UnsupportedCheckpoint, match=message):
        load(params, config)


def test_a_checkpoint_without_its_memory_is_refused_by_name():
    params, config = parts(of_rmt("mem"))
    del params["mem_tokens"]
    with pytest.raises(UnsupportedCheckpoint, match="mem_tokens"):
        load(params, config)
