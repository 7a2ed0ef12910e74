"""The released Recurrent Memory Transformer, read into brt and replayed."""

import functools
import json
from pathlib import Path

import numpy as np
import pytest
import rmt_numpy
from paths import GOLDEN
from tiny_models import read_segment
from txl_numpy import SETTINGS, released_params

from brt.models.checkpoints.recurrent_memory import load
from brt.models.checkpoints.transformer_xl import UnsupportedCheckpoint

RECORDINGS = sorted(GOLDEN.glob("rmt_*.npz"))
ABSENT = f"no recordings under {GOLDEN}"
every_recording = pytest.mark.parametrize(
    "file",
    RECORDINGS or [pytest.param("none", marks=pytest.mark.skip(reason=ABSENT))],
    ids=lambda file: Path(file).stem,
)

MEMORY = dict(num_mem_tokens=3, mem_at_end=True, read_mem_from_cache=False, mem_len=0)
VARIANTS = {
    "mem": {},
    "cache": dict(mem_len=5),
    "cache_grows": dict(mem_len=19),
    "reads_cache": dict(mem_len=5, read_mem_from_cache=True),
    "begin_only": dict(mem_at_end=False),
    "begin_only_cache": dict(mem_at_end=False, mem_len=5, read_mem_from_cache=True),
}


@functools.cache
def recording(variant):
    config = SETTINGS | MEMORY | VARIANTS[variant]
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


@every_recording
def test_the_reference_writes_what_the_released_code_wrote(file):
    with np.load(file, allow_pickle=False) as archive:
        recorded = dict(archive)
    params, config = parts(recorded)
    batch = (recorded[name][:2] for name in ("tokens", "targets"))
    found = rmt_numpy.record(config, params, *batch)
    for name in ("hidden_full", "logits", "loss", "memory_in", "memory_out"):
        np.testing.assert_allclose(found[name], recorded[name][:2], rtol=0, atol=2e-5)
    for name in [name for name in found if name.startswith("mems_in_seg1")]:
        np.testing.assert_allclose(found[name], recorded[name], rtol=0, atol=2e-5)


@every_recording
def test_every_recording_is_reproduced(check, file):
    assert check(file) == 0


def test_future_positions_are_true_unless_of_released_code():
    params, config = parts(recording("mem"))
    model = load(params, config)
    first = recording("mem")["tokens"][0].T
    read = functools.partial(read_segment, model, first, np.zeros(2, bool), model.init_caches(2))
    published, _ = read()
    model.body.published_artefacts = False
    clean, _ = read()
    assert np.abs(published - clean).max() > 1e-2
    expected = rmt_numpy.record(config, params, *[first.T[None]] * 2, artefacts=False)["logits"]
    np.testing.assert_allclose(np.swapaxes(clean, 0, 1), expected[0], rtol=0, atol=2e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_parameters_and_settings_get_to_the_right_places(check, variant):
    assert check(recording(variant)) == 0


def test_a_checkpoint_without_its_memory_is_refused_by_name():
    params, config = parts(recording("mem"))
    del params["mem_tokens"]
    with pytest.raises(UnsupportedCheckpoint, match="mem_tokens"):
        load(params, config)
