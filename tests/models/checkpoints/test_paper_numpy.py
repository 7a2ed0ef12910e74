"""The transcription against the recordings, and the paper's statements."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from paper_numpy import (
    Settings,
    bucket,
    gate,
    init_caches,
    next_states,
    run_segment,
    windowed_attention,
)
from paths import GOLDEN
from recordings_numpy import from_recording

NAMES = sorted(p.stem for p in GOLDEN.glob("meliad_*.npz") if "memorizing" not in p.stem)
ABSENT = f"no recordings under {GOLDEN}"
RECORDED = {
    "keys": "previous_keys_test",
    "values": "previous_values_test",
    "states": "recurrent_state_test",
}

D, F, V, S = 6, 10, 11, 3
SLIDE = Settings(num_heads=2, head_size=4, window=4)
REC = replace(SLIDE, recurrent_layers=(1,), arrangement="skip")
FEEDBACK = replace(REC, recurrent_layers=(2,), feedback=True)
CELLS = [
    replace(REC, gate=gate, arrangement=arrangement, gate_form=form)
    for gate, arrangement, form in product(
        ("fixed", "lstm"), ("dual", "single", "skip"), ("paper", "meliad")
    )
]


def random_params(settings, num_layers, seed=0):
    """Parameters of a small model, nothing at a special value."""
    rng = np.random.default_rng(seed)
    H, A = settings.num_heads, settings.num_heads * settings.head_size

    def normal(*shape):
        return rng.normal(size=shape) * (0.5 if len(shape) > 1 else 1.0)

    def gate_weights(rows, axis):
        weights = {f"candidate_{axis}D": normal(rows, D)}
        if settings.gate_form == "paper":
            weights["candidate_bias_D"] = normal(D)
        if settings.gate == "fixed":
            return weights | {"keep_bias_D": normal(D)}
        for name in ("input", "forget"):
            weights |= {f"{name}_{axis}D": normal(rows, D), f"{name}_bias_D": normal(D)}
        return weights

    def attention(crosses):
        weights = {name: normal(D, A) for name in ("queries_DA", "keys_DA", "values_DA")}
        weights["attention_scale_H"] = 3 * normal(H)
        if crosses:
            weights |= {"cross_queries_DA": normal(D, A), "cross_scale_H": 3 * normal(H)}
        return weights

    def cell():
        weights = attention(crosses=True)
        weights |= {"initial_states_SD": normal(S, D), "state_ids_SD": normal(S, D)}
        weights["norm"] = {"scale_D": normal(D)}
        if settings.arrangement != "single":
            weights["attention_gate"] = gate_weights(2 * A, "C")
        if settings.arrangement != "skip":
            weights["feed_forward_gate"] = gate_weights(F, "F")
        if settings.arrangement == "dual":
            weights |= {"feed_forward_norm": {"scale_D": normal(D)}, "hidden_DF": normal(D, F)}
        if settings.arrangement == "single":
            weights["hidden_CF"] = normal(2 * A, F)
        return weights

    def layer(recurrent):
        crosses = recurrent or settings.feedback
        weights = attention(crosses)
        weights["output_CD" if crosses else "output_AD"] = normal(2 * A if crosses else A, D)
        weights["attention_norm"] = {"scale_D": normal(D)}
        weights["feed_forward_norm"] = {"scale_D": normal(D)}
        weights["feed_forward"] = {"hidden_DF": normal(D, F), "output_FD": normal(F, D)}
        weights["relative_bias"] = {"table_HR": normal(H, 32)}
        return weights | ({"cell": cell()} if recurrent else {})

    recurrent = [index in settings.recurrent_layers for index in range(num_layers)]
    return {
        "embedding_VD": normal(V, D),
        "begin_D": normal(D),
        "final_norm": {"scale_D": normal(D)},
        "layers": {index: layer(recurrent[index]) for index in range(num_layers)},
    }


def random_tokens(rows, length, seed=1):
    return np.random.default_rng(seed).integers(0, V, size=(rows, length))


def run(params, settings, tokens_BT, lengths=None, caches=None):
    """The logits and last caches of a document cut into segments, from an empty cache or given."""
    rows, length = tokens_BT.shape
    starts_B = np.full(rows, caches is None)
    caches = init_caches(params, settings, rows) if caches is None else caches
    logits, first = [], 0
    for step in lengths or (length,):
        segment_BT = tokens_BT[:, first : first + step]
        segment_logits, caches = run_segment(params, settings, segment_BT, starts_B, caches)
        logits.append(segment_logits)
        starts_B, first = np.zeros(rows, bool), first + step
    return np.concatenate(logits, axis=1), caches


# Against the published implementation


@pytest.mark.parametrize(
    "name", NAMES or [pytest.param("none", marks=pytest.mark.skip(reason=ABSENT))]
)
def test_every_recording_is_reproduced(name):
    with np.load(GOLDEN / f"{name}.npz", allow_pickle=False) as npz:
        params, settings = from_recording(npz)
        caches = init_caches(params, settings, npz["tokens"].shape[1])
        last = len(npz["tokens"]) - 1
        for segment, tokens_BT in enumerate(npz["tokens"]):
            starts_B = npz["start_of_sequence"][segment]
            logits_BTV, caches = run_segment(params, settings, tokens_BT, starts_B, caches)
            np.testing.assert_allclose(logits_BTV, npz["logits"][segment], rtol=0, atol=2e-5)
            for folder in ["state_seg0"] * (segment == 0) + ["state"] * (segment == last):
                remembered = {
                    f"{folder}/transformer{index}/{RECORDED[key]}": array
                    for index, cache in enumerate(caches)
                    for key, array in cache.items()
                }
                assert remembered.keys() == {k for k in npz if k.startswith(f"{folder}/")}
                for key, array in remembered.items():
                    np.testing.assert_allclose(array, npz[key], rtol=0, atol=2e-5, err_msg=key)


# The window


def test_a_token_reaches_exactly_the_next_W_tokens():
    params, W = random_params(SLIDE, 1), SLIDE.window
    tokens_BT = random_tokens(1, 4 * W)
    before_BTV, _ = run(params, SLIDE, tokens_BT)
    for j in range(4 * W):
        changed_BT = tokens_BT.copy()
        changed_BT[0, j] = (changed_BT[0, j] + 1) % V
        after_BTV, _ = run(params, SLIDE, changed_BT)
        moved = np.flatnonzero((before_BTV != after_BTV).any(axis=(0, 2)))
        assert list(moved) == list(range(j, min(j + W + 1, 4 * W)))


def test_zero_keys_of_an_empty_cache_take_attention():
    params, W = random_params(SLIDE, 1), SLIDE.window
    layer = params["layers"][0]
    Q_WHK, K_WHK, V_WHK = np.random.default_rng(2).normal(size=(3, W, 2, 4))
    empty_WHK = np.zeros((W, 2, 4))
    context = [np.concatenate([empty_WHK, x_WHK]) for x_WHK in (K_WHK, V_WHK)]
    attended_WHK = windowed_attention(layer, SLIDE, Q_WHK, *context).reshape(W, 2, 4)
    for h in range(2):
        # Token 1 sees token 0 at distance 1, and zeros at distances 2 ... W.
        scale, bias_R = abs(layer["attention_scale_H"][h]), layer["relative_bias"]["table_HR"][h]
        seen = np.exp((Q_WHK[1, h] @ K_WHK[0, h] + bias_R[1]) * scale)
        zeros = sum(np.exp(bias_R[distance] * scale) for distance in range(2, W + 1))
        expected_K = V_WHK[0, h] * seen / (seen + zeros)
        np.testing.assert_allclose(attended_WHK[1, h], expected_K, rtol=1e-12)


def test_buckets_are_exact_below_16_and_logarithmic_to_128():
    assert [bucket(n) for n in range(1, 16)] == list(range(1, 16))
    first = {b: min(n for n in range(1, 300) if bucket(n) == b) for b in range(16, 32)}
    # Bucket 16 + k begins at 16 * 8 ** (k / 16), rounded up.
    assert list(first.values()) == [16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113]
    assert bucket(127) == bucket(128) == bucket(10_000) == 31


# The states


@pytest.mark.parametrize("settings", CELLS, ids=str)
def test_gates_follow_equations_1_to_7_or_the_published_code(settings):
    weights = {
        "candidate_CD": np.array([[2.0]]),
        "candidate_bias_D": np.array([0.25 if settings.gate_form == "paper" else np.nan]),
        "keep_bias_D": np.array([np.log(3.0)]),  # g = 3/4
        "input_CD": np.array([[0.5]]),
        "input_bias_D": np.array([0.5]),  # i = 1/2, as 0.5 + 0.5 - 1 = 0
        "forget_CD": np.array([[-0.5]]),
        "forget_bias_D": np.array([-0.5 + np.log(3.0)]),  # f = 3/4
    }
    if settings.gate_form == "paper":
        z = np.tanh(2.25) if settings.gate == "lstm" else 2.25
    else:
        z = np.tanh(2.0) if settings.arrangement == "single" else 2.0
    expected = 4.0 * 0.75 + z * (0.25 if settings.gate == "fixed" else 0.5)
    after_SD = gate(weights, settings, np.array([[4.0]]), np.array([[1.0]]), "C")
    np.testing.assert_allclose(after_SD, [[expected]], rtol=1e-12)


def test_tokens_read_the_state_from_before_their_own_block():
    params, tokens_BT = random_params(REC, 2), random_tokens(1, 8)
    before_BTV, _ = run(params, REC, tokens_BT)
    params["layers"][1]["cell"]["attention_gate"]["keep_bias_D"] += 1
    after_BTV, _ = run(params, REC, tokens_BT)
    np.testing.assert_array_equal(before_BTV[:, :4], after_BTV[:, :4])
    assert (before_BTV[:, 4:] != after_BTV[:, 4:]).all()


def test_states_see_two_blocks_of_tokens_in_no_order():
    cell = random_params(REC, 2)["layers"][1]["cell"]
    rng = np.random.default_rng(3)
    states = (cell["initial_states_SD"], *rng.normal(size=(2, S, 2, 4)))
    K_e_XHK, V_e_XHK = rng.normal(size=(2, 8, 2, 4))
    before_SD = next_states(cell, REC, *states, K_e_XHK, V_e_XHK)
    order = rng.permutation(8)
    shuffled_SD = next_states(cell, REC, *states, K_e_XHK[order], V_e_XHK[order])
    np.testing.assert_allclose(before_SD, shuffled_SD, rtol=1e-12)
    for j in range(8):
        changed_XHK = V_e_XHK.copy()
        changed_XHK[j] += 1
        assert (next_states(cell, REC, *states, K_e_XHK, changed_XHK) != before_SD).all()


# Feedback


def test_feedback_reads_the_state_as_the_previous_block_left_it():
    params, tokens_BT = random_params(FEEDBACK, 3), random_tokens(1, 8)
    _, block0 = run(params, FEEDBACK, tokens_BT[:, :4])
    _, block1 = run(params, FEEDBACK, tokens_BT)
    params["layers"][2]["cell"]["attention_gate"]["keep_bias_D"] += 1
    _, changed0 = run(params, FEEDBACK, tokens_BT[:, :4])
    _, changed1 = run(params, FEEDBACK, tokens_BT)
    np.testing.assert_array_equal(block0[1]["keys"], changed0[1]["keys"])
    assert (block1[1]["keys"] != changed1[1]["keys"]).all()
