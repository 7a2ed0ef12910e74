"""Relative effective context length: hand-made losses whose answer is known, and plain loops."""

import math

import numpy as np
import pytest

from brt.studies.recl import (
    SHARES,
    baseline,
    effective_context,
    gain,
    gains,
    hard_positions,
    perplexities,
    relative_loss,
)

CONTEXTS = np.arange(100, 1600, 100)


def improving_until(last, start=3.0, drop=0.1, positions=50):
    """Losses that fall by `drop` nats with each context up to `last`, and then no more: (C, P)."""
    steps_C = (np.minimum(CONTEXTS, last) - CONTEXTS[0]) / 100
    hardness_P = np.random.default_rng(0).uniform(0, 1, positions)
    return start - drop * steps_C[:, None] + hardness_P


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("last", [100, 200, 700, 1400, 10_000])
def test_the_context_ends_where_losses_stop_improving(last, share):
    losses_MCP, expected = improving_until(last)[None], (min(last, 1500), last < 1500)
    assert effective_context(losses_MCP, 0, CONTEXTS, share) == expected


def test_each_model_of_a_group_has_its_own_context():
    group_MCP = np.stack([improving_until(last) for last in (900, 500, 400)])
    assert [effective_context(group_MCP, i, CONTEXTS, 0.5)[0] for i in range(3)] == [900, 500, 400]


def test_a_model_behind_the_group_gains_nothing_from_context():
    # Alone, it improves up to 900. In a group with a model that is better with the shortest context
    # than it ever becomes, its improvements do not count.
    late, best = improving_until(900, start=5.0), improving_until(100, start=1.0)
    assert effective_context(late[None], 0, CONTEXTS, 1.0) == (900, True)
    assert effective_context(np.stack([late, best]), 0, CONTEXTS, 1.0) == (100, True)


def test_the_threshold_is_one_hundredth_of_the_perplexity():
    # With one model that always improves, g = 1 - e^-drop: 0.01 lies at 0.01005 nats.
    for drop, found in ((0.0100, (100, True)), (0.0102, (1500, False))):
        losses_MCP = improving_until(10_000, drop=drop)[None]
        assert effective_context(losses_MCP, 0, CONTEXTS, 1.0) == found


def test_hard_positions_are_those_the_group_predicts_worst():
    baseline_P = np.array([0.1, 5.0, 3.0, 4.0, 0.2, 2.0, 1.0, 0.3, 0.0, 0.4])
    np.testing.assert_array_equal(hard_positions(baseline_P, 0.1), [1])
    np.testing.assert_array_equal(hard_positions(baseline_P, 0.5), [1, 2, 3, 5, 6])
    np.testing.assert_array_equal(hard_positions(baseline_P, 1.0), np.arange(10))
    assert len(hard_positions(baseline_P, 0.01)) == 1


def test_only_the_hard_positions_count():
    # Context helps at the hardest tenth of the positions only, by 1 nat up to 700.
    losses_CP = np.full((len(CONTEXTS), 100), 1.0)
    losses_CP[:, :10] = improving_until(700, start=5.0, drop=0.1, positions=10)
    found = [effective_context(losses_CP[None], 0, CONTEXTS, share)[0] for share in (0.1, 1.0)]
    assert found == [700, 100]  # over all positions a hundredth of a nat, just too little
    assert gain(losses_CP[None], 0, 0, 1, 0.1) == pytest.approx(1 - math.exp(-0.1))


@pytest.mark.parametrize("seed", range(3))
def test_everything_equals_plain_loops_over_the_definitions(seed):
    rng = np.random.default_rng(seed)
    losses_MCP = rng.gamma(2.0, size=(3, 4, 21)) - 0.3 * np.arange(4)[:, None]
    for model in range(3):
        for share in SHARES:
            for short in range(4):
                best = [min(losses_MCP[i][short][t] for i in range(3)) for t in range(21)]
                assert best == baseline(losses_MCP)[short].tolist()
                ranked = sorted(range(21), key=lambda t: -best[t])
                hard = ranked[: {0.1: 2, 0.5: 10, 1.0: 21}[share]]
                for long in range(short, 4):
                    f = [
                        sum(min(best[t], losses_MCP[model][at][t]) for t in hard) / len(hard)
                        for at in (short, long)
                    ]
                    found = relative_loss(losses_MCP, model, short, long, share)
                    assert found == pytest.approx(f[1], rel=1e-12)
                    drop = math.exp(f[0]) - math.exp(f[1])
                    found = gain(losses_MCP, model, short, long, share)
                    assert found == pytest.approx(drop / math.exp(f[0]), rel=1e-9)
                    found = gains(losses_MCP, model, share)[short, long]
                    assert found == pytest.approx(drop, rel=1e-9)
        for c in range(4):
            ppl = math.exp(sum(losses_MCP[model][c]) / 21)
            assert perplexities(losses_MCP)[model, c] == pytest.approx(ppl, rel=1e-12)


def test_figure_3_is_empty_below_and_zero_on_the_diagonal():
    found_CC = gains(improving_until(700)[None], 0, 0.1)
    assert np.isnan(found_CC[np.tril_indices(len(CONTEXTS), -1)]).all()
    np.testing.assert_array_equal(np.diag(found_CC), 0)
    assert (np.diff(found_CC[0]) >= 0).all() and found_CC[0, 6] == found_CC[0, -1] > 0
