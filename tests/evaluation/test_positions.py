"""Loss by position, against loops over tokens."""

import math

import numpy as np
import pytest
from fabricated_recordings import fabricate

from brt.evaluation.studies.positions import positions

LENGTHS = [1, 5, 30, 31, 77, 150]
SEGMENT, WINDOW = 24, 8


@pytest.fixture(scope="module")
def made(store_of, tmp_path_factory):
    store, rng = store_of(LENGTHS), np.random.default_rng(0)
    nats = [np.float32(rng.exponential(size=length)) for length in LENGTHS]
    other = [np.float32(rng.exponential(size=length)) for length in LENGTHS]
    folder, sizes = tmp_path_factory.mktemp("r"), {"segment_length": SEGMENT, "window": WINDOW}
    recordings = {
        "one": fabricate(folder / "one", store, nats, **sizes),
        "two": fabricate(folder / "two", store, other, **sizes),
    }
    return store, recordings, {"one": nats, "two": other}


@pytest.mark.parametrize("documents", [range(6), [1, 3, 4]])
def test_curves_are_means_over_all_tokens_up_to_a_position(made, documents):
    store, recordings, nats = made
    found = positions(recordings, store, documents)
    curves = {series["name"]: series for series in found["series"]}
    for name in ("one", "two"):
        curve = curves[f"cumulative, {name}"]
        for x, y in zip(curve["x"], curve["y"]):
            seen = np.concatenate([nats[name][d][:x] for d in documents])
            assert y == pytest.approx(seen.mean(dtype=float) / math.log(2))
        whole = np.concatenate([nats[name][d] for d in documents]).mean(dtype=float)
        assert curve["x"][-1] == max(LENGTHS[d] for d in documents)
        assert found["numbers"][f"bits_per_token, {name}"] == pytest.approx(whole / math.log(2))
    reached = curves["documents"]
    for x, y in zip(reached["x"], reached["y"]):
        assert y == sum(LENGTHS[d] >= x for d in documents)


def test_places_are_means_over_all_but_first_segments(made):
    store, recordings, nats = made
    curves = {s["name"]: s for s in positions(recordings, store, range(6))["series"]}
    for what, length in (("segment", SEGMENT), ("block", WINDOW)):
        curve = curves[f"by place in the {what}, one"]
        for x, y in zip(curve["x"], curve["y"]):
            tokens = [
                value
                for document in nats["one"]
                for place, value in enumerate(document)
                if place >= SEGMENT and place % length == x
            ]
            assert y == pytest.approx(np.mean(tokens, dtype=float) / math.log(2))
        assert len(curve["x"]) == length


def test_a_single_token_has_a_curve_too(made):
    store, recordings, nats = made
    found = positions({"one": recordings["one"]}, store, [0])
    assert found["series"][0]["x"] == [1]
    assert found["series"][0]["y"][0] == pytest.approx(nats["one"][0][0] / math.log(2))
