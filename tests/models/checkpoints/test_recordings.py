"""Recordings of published implementations, where they are: brt and its references replay them."""

import json

import numpy as np
import pytest
import rmt_numpy
import txl_numpy
from golden import every

FEW_GRADIENTS = "meliad", "melodi"
"""Recordings whose gradients take long to compile: of one segment of one model, except if slow."""


@every("")
def test_every_recording_is_reproduced(check, file):
    if not file.stem.startswith(FEW_GRADIENTS):
        assert check(file) == 0
        return
    kept = ["grads_loss"] if "lstm" in file.stem or "memorizing" in file.stem else []
    with np.load(file, allow_pickle=False) as archive:
        names = [name for name in archive if not name.endswith("_loss") or name in kept]
        arrays = {name: archive[name] for name in names}
    assert check(arrays, name=file.stem) == 0


@pytest.mark.slow
@every(*FEW_GRADIENTS)
def test_every_recording_is_reproduced_with_all_its_gradients(check, file):
    assert check(file) == 0


@every("txl", "rmt_mem")
def test_the_reference_writes_what_the_released_code_wrote(file):
    with np.load(file, allow_pickle=False) as archive:
        recorded = dict(archive)
    params = {key[7:]: value for key, value in recorded.items() if key.startswith("params/")}
    config = json.loads(str(recorded["config_json"]))
    segments = 4 if config.get("reset_length") else 2  # until the memory is cut
    reference = txl_numpy if file.stem.startswith("txl") else rmt_numpy
    batch = (recorded[name][:segments] for name in ("tokens", "targets"))
    found = reference.record(config, params, *batch)
    of_all = "hidden", "hidden_full", "loss", "logits", "log_probs", "memory_in", "memory_out"
    for name in found.keys() & of_all:
        np.testing.assert_allclose(found[name], recorded[name][:segments], rtol=0, atol=2e-5)
    for name in [name for name in found if name.startswith("mems_in_seg1")]:
        np.testing.assert_allclose(found[name], recorded[name], rtol=0, atol=2e-5)
