"""The Recurrent Memory Transformer: cuts, the auxiliary loss, operations, and refused settings.

What it sees and computes and how it decodes are laws: of `rmt`, `rmt_txl`, `rmt_reads_cache` and
`memtr*`.
"""

import numpy as np
import pytest
from architectures import SEGMENT, VOCABULARY, abstract, random_model
from tiny_models import OneKey, quick_jit, read_segment, wide_types  # noqa: F401

from brt.models.memory_tokens.model import RecurrentMemoryTransformer
from brt.models.recurrent_networks import LSTM
from brt.models.transformer_xl.memory_tokens import segment_mask, visible_positions

B, T, V = 2, SEGMENT, VOCABULARY
MODELS = {
    "rmt": dict(num_memory=3),
    "cache": dict(num_memory=2, memory_length=5),
    "long cache": dict(num_memory=2, memory_length=24, read_memory_from_cache=True),
    "start": dict(num_memory=3, memory_at_end=False),
    "start, cache": dict(num_memory=3, memory_at_end=False, memory_length=4),
}


def built(**settings):
    """Memory tokens around a Transformer-XL; settings of either."""
    return random_model("rmt", dtype="float64", num_layers=2, **settings)


def tokens(length=T):
    return np.random.default_rng(0).integers(0, V, (B, length)).astype(np.int32)


@pytest.mark.parametrize("name", ["rmt", "cache"])
def test_other_cuts_change_logits_only_after_the_first(name):
    # Memory is updated at the ends of segments only, so law L1 holds up to the first cut. After it
    # a token reads the memory instead of the earlier tokens.
    model, ids, going_on = built(**MODELS[name]), tokens(2 * T), np.zeros(B, bool)
    long, caches, parts = model.for_segments(2 * T), model.init_caches(B), []
    whole, _ = read_segment(long, ids, going_on, caches)
    for part in np.split(ids, 2, axis=1):
        logits_BTV, caches = read_segment(model, part, going_on, caches)
        parts.append(logits_BTV)
    np.testing.assert_allclose(whole[:, :T], parts[0], rtol=0, atol=1e-12)
    assert (np.abs(np.asarray(whole[:, T:] - parts[1])).max(axis=-1) > 1e-3).all()


@pytest.mark.parametrize("cutoffs", [(), (5, 11)])
def test_the_auxiliary_loss_is_of_one_more_memory_entry(cutoffs):
    settings = dict(num_memory=3, cutoffs=cutoffs, div_val=2 if cutoffs else 1)
    added = built(**settings, auxiliary_weight=0.01)
    assert added.body.embedding.edges[-1] == V + 1 and added.vocabulary_size == V

    @quick_jit
    def read(tokens_BT):
        _, caches, metrics = added.stack(added.embed(tokens_BT), added.init_caches(B))
        return added.logits(caches[-1].memory_BSD), metrics["added_nats"]

    logits_BSV, added_nats = map(np.asarray, read(tokens()))
    log_sum = np.log(np.exp(logits_BSV).sum(axis=-1))
    expected = 0.01 * (log_sum - logits_BSV[..., V]).mean()
    assert added_nats == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("name", MODELS)
def test_operations_are_counted_as_the_mask_has_them(name):
    found = built(**MODELS[name])
    M, S = found.body.memory_length, found.num_memory
    X = T + (2 * S if found.memory_at_end else S)
    mask = np.asarray(segment_mask(S, T, found.memory_at_end))
    position = np.arange(X)
    is_memory = (position < S) | (position >= S + T)
    filled_BM = np.ones((1, M), bool)
    full = visible_positions(mask, is_memory, filled_BM, found.read_memory_from_cache)
    A, D, F, layers = 8, 12, 10, 2
    per_position = 2 * (4 * D * A + 2 * D * F)  # queries, keys, values, output; the MLP
    of_cache = 2 * 2 * D * A * M  # its keys and values
    pairs = 3 * 2 * A * int(np.asarray(full).sum())  # by content, by position, of values
    expected = 2 * V * D + layers * (X * per_position + of_cache + pairs) / T
    assert found.flops_per_token() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (dict(num_memory=T), r"num_memory = 8 .* allow_long_memory"),
        (dict(num_memory=T + 3), r"num_memory = 11 .* whole segment of 8"),
        (dict(num_memory=2, encoding="absolute"), "TransformerXL.encoding"),
        (dict(num_memory=2, same_length=True, memory_length=4), "same_length = False"),
    ],
)
def test_settings_that_cannot_be_are_named(settings, named):
    with pytest.raises(ValueError, match=named):
        built(**settings)


def test_a_memory_as_long_as_the_segment_is_allowed_on_request():
    assert built(num_memory=T, allow_long_memory=True).num_memory == T


def test_a_body_that_is_none_is_refused_by_name():
    def network(rngs, special_tokens):
        return LSTM(rngs, vocabulary_size=V, width=12, num_layers=1, hidden_size=8)

    with pytest.raises(ValueError, match=r"RecurrentMemoryTransformer\.body .* and LSTM is none\."):
        RecurrentMemoryTransformer(OneKey(), num_memory=2, body=network)


@pytest.mark.parametrize("weight", [0.0, 0.1])
def test_a_stack_has_one_more_entry_for_the_auxiliary_loss(weight):
    model = abstract("rmt_slide", auxiliary_weight=weight)
    assert model.vocabulary_size == V
    assert len(model.body.embedding_VD) == V + (weight > 0)
