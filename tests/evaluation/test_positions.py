"""Loss by position, against loops over tokens."""

import itertools
import math

import numpy as np
import pytest
from fabricated_recordings import fabricate

from brt.studies.positions import loss_by_position

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
    found = loss_by_position(recordings, store, documents)
    curves = {curve["name"]: curve for curve in found["series"]}
    counts = curves["documents"]
    assert counts["x"][-1] == found["numbers"]["longest"] == max(LENGTHS[d] for d in documents)
    for name in ("one", "two"):
        curve = curves[f"cumulative, {name}"]
        assert curve["x"] == counts["x"]
        for x, y in zip(curve["x"], curve["y"], strict=True):
            seen = np.concatenate([nats[name][d][:x] for d in documents])
            assert y == pytest.approx(seen.mean(dtype=float) / math.log(2))
        assert found["numbers"][f"bits_per_token, {name}"] == curve["y"][-1]
        curve = curves[f"from a position, {name}"]
        assert curve["x"] == [2**n for n in range(20) if 2**n <= counts["x"][-1]]
        for x, y in zip(curve["x"], curve["y"], strict=True):
            seen = np.concatenate([nats[name][d][x - 1 : 2 * x - 1] for d in documents])
            assert y == pytest.approx(seen.mean(dtype=float) / math.log(2))
    for x, y in zip(counts["x"], counts["y"], strict=True):
        assert y == sum(LENGTHS[d] >= x for d in documents)


def part_of(found, unit, name):
    return next(c for c in found["series"] if c["name"] == f"by position in the {unit}, {name}")


def test_places_are_means_over_all_but_first_segments(made):
    store, recordings, nats = made
    found = loss_by_position(recordings, store, range(6))
    units = ("segment", SEGMENT), ("block", WINDOW)
    for name, (unit, length) in itertools.product(("one", "two"), units):
        part = part_of(found, unit, name)
        for x, y in zip(part["x"], part["y"], strict=True):
            tokens = [
                value
                for document in nats[name]
                for position, value in enumerate(document)
                if position >= SEGMENT and position % length == x
            ]
            assert y == pytest.approx(np.mean(tokens, dtype=float) / math.log(2))
        assert len(part["x"]) == length


def test_a_part_of_a_long_block_is_at_its_first_token(store_of, tmp_path):
    """100 tokens in 64 parts: some have two tokens."""
    store, nats = store_of([450]), np.float32(np.random.default_rng(2).exponential(size=450))
    made = {"a": fabricate(tmp_path / "a", store, [nats], segment_length=200, window=100)}
    part = part_of(loss_by_position(made, store, [0]), "block", "a")
    assert len(part["x"]) == 64
    for (x, end), y in zip(itertools.pairwise([*part["x"], 100]), part["y"], strict=True):
        tokens = [nats[t] for t in range(200, 450) if x <= t % 100 < end]
        assert y == pytest.approx(np.mean(tokens, dtype=float) / math.log(2))


def test_tokens_count_by_the_loss_weights_of_the_corpus(store_of, tmp_path):
    store, rng = store_of(LENGTHS, weighted=True), np.random.default_rng(1)
    nats = [np.float32(rng.exponential(size=length)) for length in LENGTHS]
    weights = [store.weights(d) for d in range(6)]
    for nats_T, weights_T in zip(nats, weights):
        nats_T[weights_T == 0] = np.inf
    sizes = {"segment_length": SEGMENT, "window": WINDOW}
    found = loss_by_position(
        {"a": fabricate(tmp_path / "a", store, nats, **sizes)}, store, range(6)
    )
    assert found["numbers"]["tokens"] == sum((w > 0).sum() for w in weights) < sum(LENGTHS)
    curve = found["series"][0]
    assert curve["x"][0] == 2  # a document's first token has no weight
    for x, y in zip(curve["x"], curve["y"], strict=True):
        pairs = [(n, w) for d in range(6) for n, w in zip(nats[d][:x], weights[d][:x]) if w > 0]
        expected = sum(float(n) * w for n, w in pairs) / sum(w for _, w in pairs)
        assert y == pytest.approx(expected / math.log(2))
    part = part_of(found, "block", "a")
    for x, y in zip(part["x"], part["y"], strict=True):
        positions = [
            (d, t) for d in range(6) for t in range(SEGMENT, LENGTHS[d]) if t % WINDOW == x
        ]
        total = sum(float(nats[d][t]) * weights[d][t] for d, t in positions)
        expected = total / sum(weights[d][t] for d, t in positions)
        assert y == pytest.approx(expected / math.log(2))


def test_a_single_token_has_a_curve_too(made):
    store, recordings, nats = made
    found = loss_by_position({"one": recordings["one"]}, store, [0])
    assert found["series"][0]["x"] == [1]
    assert found["series"][0]["y"] == pytest.approx([nats["one"][0][0] / math.log(2)])
