"""Parameters at the published sizes, and operations against the compiler's own count."""

import functools

import jax
import numpy as np
import pytest
from architectures import ARCHITECTURES, abstract
from flax import nnx
from tiny_models import OneKey, parameters

from brt.models.block_recurrent import BlockRecurrentTransformer
from brt.models.counts import count_parameters, flops_per_token
from brt.models.memories.recurrent_cell import RecurrentCell

# Block-Recurrent, section 4.2: layers, D, H, K, F, recurrent layers, layers of the baseline,
# and millions of weights outside embeddings: plain, baseline, recurrent.
SIZES = {
    "40.6M": ((12, 512, 8, 64, 2048), (9,), 13, (37.7, 40.9, 40.4)),
    "81.2M": ((12, 512, 8, 128, 4096), (9,), 13, (75.5, 81.8, 80.2)),
    "162M": ((12, 1024, 8, 128, 4096), (9,), 13, (151.0, 163.6, 160.4)),
    "325M": ((12, 1024, 16, 128, 8192), (9,), 13, (302.0, 327.2, 319.8)),
    "650M": ((24, 1024, 16, 128, 8192), (9, 19), 26, (604.0, 654.3, 639.6)),
    "1.3B": ((24, 2048, 16, 128, 8192), (9, 19), 26, (1208.0, 1308.6, 1279.3)),
}


@functools.cache
def published(layers, width, heads, head_size, feed_forward, recurrent=(), arrangement="skip"):
    """A model of the paper with shapes for arrays: 32,000 words, 512 tokens, 512 states."""
    cell = functools.partial(RecurrentCell, arrangement=arrangement)
    return nnx.eval_shape(
        lambda: BlockRecurrentTransformer(
            OneKey(),
            32_000,
            layers,
            width,
            heads,
            head_size,
            feed_forward,
            512,
            recurrent,
            cell=cell,
        )
    )


def counts(model):
    return count_parameters(parameters(model))


@pytest.mark.parametrize("size", SIZES)
def test_models_have_the_published_number_of_parameters(size):
    (layers, *widths), recurrent, baseline, millions = SIZES[size]
    plain, more, rec = (
        counts(model)
        for model in (
            published(layers, *widths),
            published(baseline, *widths),
            published(layers, *widths, recurrent),
        )
    )
    for found, expected in zip((plain, more, rec), millions, strict=True):
        assert abs(found.non_embedding / 1e6 / expected - 1) < 0.005
        assert found.embedding == 32_001 * widths[0]  # with the row of the begin
    assert plain.recurrence == more.recurrence == 0
    # What recurrence adds is counted as recurrence, and nothing else is.
    assert rec.layers == plain.layers
    D, H, K, _ = widths
    added = len(recurrent) * (8 * D * H * K + 2 * 512 * D)
    assert 0 <= rec.recurrence - added < 0.001 * added


def test_twelve_layers_of_the_151M_size_weigh_150_994_944():
    model = parameters(published(12, 1024, 8, 128, 4096))
    matrices = sum(
        leaf.size
        for path, leaf in jax.tree_util.tree_flatten_with_path(model["layers"])[0]
        if len(leaf.shape) == 2 and path[-1].key != "table_HR"
    )
    assert matrices == 150_994_944


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_parameter_is_counted_once(name):
    model = abstract(name)
    found = counts(model)
    total = sum(leaf.size for leaf in jax.tree.leaves(parameters(model)))
    assert sum(found) == total == found.embedding + found.non_embedding
    assert found.embedding == 18 * 12
    assert (found.recurrence > 0) == bool(ARCHITECTURES[name])


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_all_that_recurrence_adds_is_counted_as_recurrence(name):
    """But that a memorizing layer has no position bias, 2 heads times 32 buckets."""
    without_bias = len(ARCHITECTURES[name].get("memorizing_layers", ()))
    plain = counts(abstract("slide")).layers - 2 * 32 * without_bias
    assert counts(abstract(name)).layers == plain


def test_a_state_is_counted_as_its_plain_dictionary_is():
    model = abstract("rec_fixed_skip")
    assert count_parameters(nnx.state(model, nnx.Param)) == counts(model)


# Operations

D, H, K, W = 128, 2, 64, 32
LAYERS = 2
WIDE = dict(
    vocabulary_size=64, num_layers=LAYERS, width=D, num_heads=H, head_size=K,
    feed_forward_size=256, window=W, num_states=24,
)  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        "slide",
        "rec_fixed_skip",
        "rec_fixed_dual",
        "rec_lstm_single",
        "rec_sequential",
        "feedback_fixed_skip",
        "feedback_lstm_single",
        "memorizing_exact",
        "memorizing_dense",
    ],
)
def test_operations_are_those_the_compiler_counts(name):
    """The compiler also counts norms and softmax: one or two per cent at this width.

    It counts a loop's body once, so the segment is one block; and the keys a token's own
    block hides from it, which `flops_per_token` leaves out: 2W are multiplied, W are seen.
    """
    recurrent = dict(recurrent_layers=(1,)) if "gate" in ARCHITECTURES[name] else {}
    memory = dict(size=8 * W, neighbours=16) if "search" in ARCHITECTURES[name] else {}
    model = abstract(name, **WIDE | recurrent | memory)
    graph, params = nnx.split(model)
    caches = jax.eval_shape(lambda params: nnx.merge(graph, params).init_caches(1), params)
    tokens = jax.ShapeDtypeStruct((1, W), "int32")
    run = jax.jit(lambda params, *inputs: nnx.merge(graph, params)(*inputs))
    counted = run.lower(params, tokens, caches).cost_analysis()["flops"] / W
    hidden = LAYERS * 4 * H * K * W
    assert 1.0 < counted / (flops_per_token(model) + hidden) < 1.02


def test_operations_of_a_plain_model_by_hand():
    model = abstract("slide")
    layer = 4 * 12 * 8 + 2 * 12 * 10  # weights of the matrices
    attention = 2 * 4 * 8  # scores and values: W = 4 keys, H * K = 8 wide
    assert flops_per_token(model) == 2 * (3 * (layer + attention) + 17 * 12)


def test_operations_of_a_recurrent_layer_by_hand():
    """Section 3.6: what states cost is paid once a block."""
    W, S, D, A, F = 4, 3, 12, 8, 10
    plain = flops_per_token(abstract("slide"))
    model = abstract("rec_fixed_dual")
    tokens = D * A + A * D + 2 * S * A  # queries, second half of the projection, attention
    matrices = 4 * D * A + 2 * A * D + 2 * D * F
    states = S * matrices + 2 * S * (S + 2 * W) * A
    assert flops_per_token(model) == pytest.approx(plain + 2 * (tokens + states / W))


def test_operations_of_an_external_memory_by_hand():
    """Every slot is weighed once, and the picked ones are attended to."""
    M, A = 8, 8
    plain = flops_per_token(abstract("slide"))
    assert flops_per_token(abstract("memorizing_exact")) == plain + 2 * A * M + 4 * A * 3
    assert flops_per_token(abstract("memorizing_dense")) == plain + 4 * A * M


def test_a_recurrent_layer_costs_about_one_more_layer():
    widths = 1024, 8, 128, 4096
    slide = flops_per_token(published(13, *widths))
    dual = flops_per_token(published(12, *widths, (9,), "dual"))
    skip = flops_per_token(published(12, *widths, (9,), "skip"))
    assert abs(dual / slide - 1) < 0.05
    assert skip < dual
    assert np.isclose(skip / slide, 1, atol=0.05)
