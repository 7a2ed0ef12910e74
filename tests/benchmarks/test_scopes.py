"""Named scopes: every cost of a compiled training step belongs to a named part of the model."""

import functools
from collections import Counter

import jax
import pytest
from architectures import ARCHITECTURES, abstract
from marking import slow
from tiny_models import QUICK
from tiny_run import one_device

from brt.benchmarks import hlo, hlo_costs
from brt.models.layers.embedding import TiedEmbedding

EXPECTED = {
    "slide": {"attention", "feed_forward"},
    "rec_fixed_skip": {"attention", "feed_forward", "states"},
    "rec_sequential": {"attention", "feed_forward", "states"},
    "feedback_fixed_skip": {"attention", "feed_forward", "states"},
    "memorizing_bucketed": {"attention", "feed_forward", "memory"},
    "rec_memorizing": {"attention", "feed_forward", "states", "memory"},
    "txl_adaptive": {"attention", "feed_forward", "memory"},
    "rmt_txl": {"attention", "feed_forward", "memory"},
    "rmt_rec": {"attention", "feed_forward", "states"},
    "compressive_convolution": {"attention", "feed_forward", "memory"},
    "lstm": {"states"},
    "qrnn": {"states"},
}
"""Parts of the layers of each kind of model."""

VARIANTS = {
    *("rec_fixed_skip", "rec_sequential", "memorizing_bucketed", "txl_adaptive", "rmt_rec", "qrnn"),
    *("feedback_fixed_skip", "compressive_convolution", "rmt_txl"),
}
"""Those whose parts occur in others: checked with the slow tests."""

every_kind = pytest.mark.parametrize(
    "name", [slow(name, when=name in VARIANTS) for name in EXPECTED]
)

SHARE = 0.08
"""The largest share of the written bytes that may have no scope. These bytes are the residuals that
the loop of block feedback keeps for its backward pass, and the gradients that are summed after it.
"""

FREE = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "call", "iota"),
    *("copy", "broadcast", "conditional"),
}
"""Instructions that compute nothing; the compiler adds some without metadata."""


@functools.cache
def compiled_step(name, accumulation=1):
    """The program of a training step, with a segment of four blocks in two rows."""
    entry = ARCHITECTURES[name]
    sizes = dict(entry.divisible) | ({"remat": "layer"} if name == "slide" else {})
    settings = dict(segment_length=4 * entry.segment, accumulation=accumulation)
    experiment = entry.experiment(2, sizes | {"dropout": 0.1}, **settings)
    mesh = one_device()
    with jax.set_mesh(mesh):
        lowered = jax.jit(experiment.train_step, donate_argnums=0).lower(
            experiment.abstract_state(mesh), experiment.abstract_batch()
        )
        return hlo.parse(lowered.compile(QUICK).as_text())


def spent(program, of=lambda visit: True):
    """Returns bytes by scope that operations which run by themselves write, all runs together."""
    scopes, found = hlo_costs.Scopes(program), Counter()
    for visit in filter(of, hlo.visits(program)):
        instruction = visit.instruction
        if not visit.fused and instruction.opcode not in FREE:
            written = hlo.array_bytes(instruction.shape) * visit.times
            found[scopes.of(instruction) or hlo_costs.OTHER] += written
    return found


def test_the_loop_over_microbatches_has_its_own_name():
    program = compiled_step("rec_fixed_skip", accumulation=2)
    loops = hlo_costs.costs(program, lambda each: hlo.array_bytes(each.shape)).loops
    assert [loop.trips for loop in loops if loop.scope == "microbatches"] == [2]
    others = {loop.scope for loop in loops} - {"microbatches"}
    assert "layer1/states" in others and loops[0].scope == "microbatches"


@every_kind
def test_what_a_step_computes_carries_the_layer_and_the_part(name):
    found = spent(compiled_step(name))
    without = found[hlo_costs.OTHER] / found.total()
    assert without < SHARE, found
    layers = {scope.partition("/")[0] for scope in found if "/" in scope}
    assert layers == {f"layer{i}" for i in range(3)}
    parts = {hlo_costs.part(scope) for scope in found if "/" in scope}
    assert parts == EXPECTED[name]
    assert {"embedding", "vocabulary", "optimizer"} <= set(found)


@every_kind
def test_every_product_carries_a_part_forward_and_backward(name):
    program = compiled_step(name)
    products = {"dot", "convolution"}
    visits = [v for v in hlo.visits(program) if v.instruction.opcode in products]
    scopes = hlo_costs.Scopes(program)
    alone = [v.instruction for v in visits if not v.fused]
    assert not [each for each in alone if hlo_costs.part(scopes.of(each)) == hlo_costs.OTHER]
    found = [v.instruction for v in visits]
    model = abstract(name)
    tied = isinstance(getattr(model, "body", model), TiedEmbedding)
    for part in EXPECTED[name] - {"memory"} | {"vocabulary"}:
        of_part = [each for each in found if hlo_costs.part(scopes.of(each)) == part]
        directions = {hlo_costs.is_backward(each.op_name) for each in of_part}
        if part == "vocabulary" and tied:  # its gradient is computed in the forward pass
            assert directions == {False}
        else:
            assert directions == {False, True}, part
