"""The released Recurrent Memory Transformer, read into brt and replayed."""

import functools
import importlib
import json
from pathlib import Path

import jax
import numpy as np
import pytest
import rmt_numpy
from flax import nnx
from paths import GOLDEN
from tiny_models import read_segment
from txl_numpy import SETTINGS, released_params

from brt.models.checkpoints.recurrent_memory import load_recording
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


@every_recording
def test_the_reference_writes_what_the_released_code_wrote(file):
    with np.load(file, allow_pickle=False) as archive:
        recorded = dict(archive)
    params = {key[7:]: value for key, value in recorded.items() if key.startswith("params/")}
    config = json.loads(str(recorded["config_json"]))
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
    model = load_recording(recording("mem"))
    first = recording("mem")["tokens"][0].T
    read = functools.partial(read_segment, model, first, np.zeros(2, bool), model.init_caches(2))
    published, _ = read()
    model.body.published_artefacts = False
    clean, _ = read()
    assert np.abs(published - clean).max() > 1e-2
    weights = rmt_numpy.of_recording(
        {k[7:]: x for k, x in recording("mem").items() if k.startswith("params/")}
    )
    settings = rmt_numpy.Settings(SETTINGS["n_head"])
    expected, *_ = rmt_numpy.read_document(weights, settings, first[:1])
    np.testing.assert_allclose(clean[0], expected[0], rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    ("variant", "prefix"),
    [
        ("mem", "grads_seg1_detached"),
        ("cache", "grads_sum"),
        pytest.param("mem", "grads_seg1", marks=pytest.mark.slow),
    ],
)
def test_the_gradient_is_the_reference_s_difference_quotient(check, variant, prefix):
    replayed = importlib.import_module("recordings.rmt")
    recorded = recording(variant)
    params = {key[7:]: value for key, value in recorded.items() if key.startswith("params/")}
    rng, push, seen = np.random.default_rng(5), {}, {}
    for name, value in params.items():  # tied names move together
        push[name] = seen.setdefault(value.tobytes(), rng.normal(size=value.shape))
    config, tokens, targets = (recorded[name] for name in ("config_json", "tokens", "targets"))
    config = json.loads(str(config))
    settings = rmt_numpy.Settings(config["n_head"], config["mem_len"], artefacts=True)
    weights = rmt_numpy.of_recording(params)
    _, memories, _, caches = rmt_numpy.read_document(weights, settings, tokens[:1, :, 0])

    def moved(by):
        """Losses of row 0 with other weights; hidden states, and a cut memory, stay data."""
        there = {name: value + by * push[name] for name, value in params.items()}
        there, nats = rmt_numpy.of_recording(there), []
        memory_SD = there["memory_SD"]
        for s in range(2):
            if s and prefix == "grads_seg1_detached":
                memory_SD = memories[1]
            x_TD = rmt_numpy.embed(there, tokens[s, :, 0])
            logits_TV, memory_SD, *_ = rmt_numpy.read_segment(
                there, settings, x_TD, memory_SD, caches[s]
            )
            chosen_T = logits_TV[np.arange(len(x_TD)), targets[s, :, 0]]
            nats.append((np.log(np.exp(logits_TV).sum(axis=-1)) - chosen_T).mean())
        return sum(w * x for w, x in zip(replayed.GRADIENTS[prefix], nats))

    quotient = (moved(1e-5) - moved(-1e-5)) / 2e-5
    with jax.enable_x64(True):
        row = {name: recorded[name][:, :, :1] for name in ("tokens", "targets")}
        model = load_recording(recorded)
        direction = nnx.state(
            load_recording(recorded | {f"params/{name}": x for name, x in push.items()}), nnx.Param
        )
        _, grads = replayed.gradients(recorded | row, model, prefix)
        products = jax.tree.map(lambda g, d: float((g * d).sum()), grads, direction)
    assert sum(jax.tree.leaves(products)) == pytest.approx(quotient, rel=1e-4)


def test_a_checkpoint_without_its_memory_is_refused_by_name():
    changed = {key: x for key, x in recording("mem").items() if key != "params/mem_tokens"}
    with pytest.raises(UnsupportedCheckpoint, match="mem_tokens"):
        load_recording(changed)
