"""The released Transformer-XL, read into brt and replayed: its recordings, and a reference's."""

import functools
import json
from pathlib import Path

import numpy as np
import pytest
from paths import GOLDEN
from tiny_models import read_segment
from txl_numpy import SETTINGS, record, released_params

from brt.models.checkpoints.transformer_xl import UnsupportedCheckpoint, load

RECORDINGS = sorted(GOLDEN.glob("txl_*.npz"))
ABSENT = f"no recordings under {GOLDEN}"
every_recording = pytest.mark.parametrize(
    "file",
    RECORDINGS or [pytest.param("none", marks=pytest.mark.skip(reason=ABSENT))],
    ids=lambda file: Path(file).stem,
)

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


@functools.cache
def recording(variant, artefacts=True, seed=0):
    config = SETTINGS | VARIANTS[variant]
    rng = np.random.default_rng(seed + 1)
    tokens, targets = rng.integers(0, config["n_token"], (2, 4, config["tgt_len"], 2))
    # Frequent and rare words, whatever the bins: none is missed.
    targets[0] = np.resize(np.arange(config["n_token"]), targets[0].shape)
    return record(config, released_params(config, seed), tokens, targets, artefacts)


def parts(recorded):
    """Released parameters and settings."""
    params = {key[7:]: value for key, value in recorded.items() if key.startswith("params/")}
    return params, json.loads(str(recorded["config_json"]))


@every_recording
def test_the_reference_writes_what_the_released_code_wrote(file):
    with np.load(file, allow_pickle=False) as archive:
        recorded = dict(archive)
    params, config = parts(recorded)
    segments = 4 if config.get("reset_length") else 2  # until the memory is cut
    found = record(config, params, recorded["tokens"][:segments], recorded["targets"][:segments])
    for name in ("hidden", "loss", "logits", "log_probs"):
        if name in found:
            np.testing.assert_allclose(found[name], recorded[name][:segments], rtol=0, atol=2e-5)
    for name in [name for name in found if name.startswith("mems_in_seg1")]:
        np.testing.assert_allclose(found[name], recorded[name], rtol=0, atol=2e-5)


@every_recording
def test_every_recording_is_reproduced(check, file):
    assert check(file) == 0


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


@pytest.mark.parametrize("variant", VARIANTS)
def test_parameters_and_settings_get_to_the_right_places(check, variant):
    assert check(recording(variant)) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"r_w_bias": None}, "r_w_bias"),
        ({"layers.7.dec_attn.o_net.weight": np.zeros((6, 8))}, "no counterpart"),
        ({"crit.out_layers.0.weight": np.zeros((11, 6))}, "no counterpart"),
        ({"r_r_bias": np.zeros((3, 4))}, "shape"),
        (dict(d_embed=4), "d_embed"),
        (dict(ext_len=2), "ext_len"),
        (dict(attn_type=4), "attn_type|no "),
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
