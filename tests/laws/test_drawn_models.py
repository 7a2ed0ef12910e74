"""The laws on models drawn at random, which nobody listed.

`DRAWN_SEEDS=400:2000` tests those seeds. With `DRAWN_LOG=file` each seed adds a line of JSON to the
file, and seeds that have one are left out.
"""

import functools
import json
import os
import time
from pathlib import Path

import jax
import numpy as np
import pytest
import test_laws as laws
from drawn_models import LAYER_MEMORIES, RECENT_MEMORIES, chains, told
from drawn_pretrained import FAMILIES, RECENT, draw
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from tiny_models import OneKey, cast, quick_jit, randomised, wide_types  # noqa: F401
from tiny_run import mesh_of

from brt.models.caches import with_state
from brt.models.counts import count_parameters
from brt.models.memory_tokens.associative import AssociativeRecurrentMemoryTransformer
from brt.models.memory_tokens.model import RecurrentMemoryTransformer
from brt.models.reader import Reader
from brt.token_ids import PADDING
from brt.training.sharding import check_divisible, shardings

SLOW, SLOW_RECENT = 400, 140
FOUND = 49, 63, 1975, RECENT + 17, RECENT + 34
"""Seeds that found defects: the beginning of a segment with memory tokens around blocks of a gated
delta memory (two), the gradient of a pooled maximum on a mesh, and cached states whose windows were
not those of a pretrained decoder (two).
"""
COSTLY = 63, RECENT + 34
"""Of these and the first few, those that take long and have another of their kind."""
LOG = os.environ.get("DRAWN_LOG")
ASKED = os.environ.get("DRAWN_SEEDS")
ALL = *range(SLOW), *range(RECENT, RECENT + SLOW_RECENT)
SEEDS = range(*map(int, ASKED.split(":"))) if ASKED else sorted({*ALL, *FOUND})
QUICK_SEEDS = *range(1, 6), *range(RECENT, RECENT + 3)
MESHES = ((8, 1), (4, 2))


# Laws that the listed architectures keep by gradients, or that other tests check on them.


def no_logit_depends_on_a_later_token(name):
    tiny = laws.tiny(name)
    tokens = laws.drawn_segments(tiny, 3, seed=20)
    segments, _, length = tokens.shape
    starts = np.zeros(tokens.shape[:2], bool)
    expected, _ = laws.segment_pass(tiny, tokens, starts)
    for at in np.random.default_rng(21).integers(0, segments * length, 4):
        other = tokens.copy()
        segment, t = divmod(at, length)
        other[segment, :, t] = (other[segment, :, t] + 1) % tiny.sizes[2]
        found, _ = laws.segment_pass(tiny, other, starts)
        np.testing.assert_array_equal(found[:, :at], expected[:, :at])
        assert not np.array_equal(found[:, at], expected[:, at])


def losses_are_those_of_the_logits(name):
    tiny = laws.tiny(name)
    before, tokens = laws.drawn_segments(tiny, 2, seed=22)
    _, caches = tiny.segment(before, tiny.empty, laws.NONE)
    logits = np.asarray(tiny.segment(tokens, caches, laws.NONE)[0])
    targets = np.random.default_rng(23).integers(0, logits.shape[-1], tokens.shape)
    graph, params = nnx.split(tiny.model, nnx.Param)

    @quick_jit
    def losses(params, tokens_BT, targets_BT, caches):
        model = nnx.merge(graph, params)
        return model.token_losses(model.stack(model.embed(tokens_BT), caches)[0], targets_BT)

    nats, correct = losses(params, tokens, targets.astype(np.int32), caches)
    # A reader is asked for the first Q targets only.
    targets = targets[:, : logits.shape[1]]
    log_sum = np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1)) + logits.max(-1)
    expected = log_sum - np.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    kept = np.asarray(nats)[:, : targets.shape[1]]
    np.testing.assert_allclose(kept, expected, rtol=0, atol=1e-9 * laws.largest(expected))
    right = logits.argmax(-1) == targets
    np.testing.assert_array_equal(np.asarray(correct)[:, : targets.shape[1]], right)


def parameters_are_counted_once(name):
    model = laws.tiny(name).model
    sizes = [leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param))]
    # Halves of a matrix in two groups may round down.
    assert 0 <= sum(sizes) - sum(count_parameters(model)) <= len(sizes)
    assert model.flops_per_token() > 0


def nothing_is_seen_from_beyond_the_windows(name):
    if not with_state(laws.tiny(name).empty):
        laws.test_only_what_carries_a_state_sees_infinitely_far(name)


def clearing_keeps_what_windows_hold(name):
    # States of a sliding window also attend to the keys before their block, which clearing keeps.
    # Memory tokens between the segments take up positions of the windows. With `same_length` the
    # first token of a segment sees as many tokens before it as the last.
    model = laws.tiny(name).model
    if isinstance(model, RecurrentMemoryTransformer) or getattr(model, "same_length", False):
        return
    if model.windows_reach() >= model.period or not with_state(laws.tiny(name).empty):
        laws.test_clearing_the_state_keeps_windows_only(name)


def states_change_and_change_what_follows(name):
    tiny = laws.tiny(name)
    if not isinstance(tiny.model, AssociativeRecurrentMemoryTransformer):
        laws.test_each_state_changes_with_a_segment_and_changes_the_next(name)
        return
    # Features of keys are sparse: those of one layer may meet no query of a segment.
    first, new = laws.drawn_segments(tiny, 2, seed=25)
    _, caches = tiny.segment(first, tiny.empty, laws.NONE)
    assert not any(laws.same(*pair) for pair in zip(caches, tiny.empty, strict=True))
    kept, _ = tiny.segment(new, caches, laws.NONE)
    cleared, _ = tiny.segment(new, tiny.empty, laws.NONE)
    assert not np.array_equal(kept, cleared)


def cuts_change_nothing(name):
    laws.test_cutting_at_block_boundaries_changes_nothing(name, "float64", 1e-9)


def decoding_is_the_segment_pass(name):
    laws.test_decoding_token_by_token_is_the_segment_pass(name, "float64", 1e-9)


# Laws of readers, which mask padding and give answers.


def padded_segments_in_front_change_nothing(name):
    tiny = laws.tiny(name)
    tokens = laws.drawn_segments(tiny, 2, seed=24)
    padding = np.full_like(tokens, PADDING)
    starts = np.array([[True] * laws.ROWS] * 3 + [[False] * laws.ROWS])
    both = np.concatenate([padding, tokens])
    found, _ = laws.segment_pass(tiny, both, starts)
    expected, _ = laws.segment_pass(tiny, tokens, starts[2:])
    # Twice as many segments, of which the last are the same.
    np.testing.assert_array_equal(found[:, expected.shape[1] :], expected)


# Laws of the passes of training, on a few draws, as these compile slowly.


def losses_and_gradients(drawn, seed, mesh_shape=None, **overrides):
    """Losses of two segments of eight rows, the caches after them, and the gradient."""
    architecture = drawn.architecture()
    model = nnx.eval_shape(lambda: architecture.build(OneKey(), **overrides))
    model = cast(randomised(model.for_segments(drawn.segment), seed), "float64")
    graph, params = nnx.split(model, nnx.Param)
    rng = np.random.default_rng(seed)
    tokens, targets = rng.integers(0, architecture.vocabulary, (2, 2, 8, drawn.segment), np.int32)
    if isinstance(model, Reader):
        targets = np.zeros_like(targets)

    def loss(params, tokens_SBT, targets_SBT):
        model = nnx.merge(graph, params)
        caches, total = model.init_caches(8), 0.0
        for tokens_BT, targets_BT in zip(tokens_SBT, targets_SBT):
            y_BTD, caches, metrics = model.stack(model.embed(tokens_BT), caches)
            nats_BT, _ = model.token_losses(y_BTD, targets_BT)
            total += nats_BT.sum() + metrics.get("added_nats", 0.0)
        return total, caches

    run = quick_jit(jax.value_and_grad(loss, has_aux=True))
    if mesh_shape is None:
        return run(params, tokens, targets)
    mesh = mesh_of(*mesh_shape)
    check_divisible(mesh, 8, model.divided_sizes())
    with jax.set_mesh(mesh):
        rows = NamedSharding(mesh, PartitionSpec(None, "data"))
        params = jax.device_put(params, shardings(params, mesh))
        return run(params, *jax.device_put((tokens, targets), rows))


def a_mesh_changes_no_loss_and_no_gradient(seed):
    drawn, mesh = draw(seed, parts=(2, 8)[seed % 3 % 2]), MESHES[seed // len(FAMILIES) % 2]
    on_mesh, alone = (losses_and_gradients(drawn, seed, each) for each in (mesh, None))
    laws.leaves_close(on_mesh, alone, 1e-9)


def kernels_compute_the_plain_form(seed):
    drawn, mesh = draw(seed, KERNEL_PARTS), (None, *MESHES)[seed % 3]
    kernel = losses_and_gradients(drawn, seed, mesh, attention_form="kernel")
    plain = losses_and_gradients(drawn, seed, attention_form="plain")
    laws.leaves_close(kernel, plain, 1e-9)


OF_ALL = {
    "rows": laws.test_rows_are_strangers,
    "reset": laws.test_a_row_that_starts_a_document_is_a_fresh_model,
    "state": states_change_and_change_what_follows,
    "counts": parameters_are_counted_once,
    "loss": losses_are_those_of_the_logits,
}
OF_READERS = {"padding in front": padded_segments_in_front_change_nothing}
OF_LANGUAGE_MODELS = {
    "padding": laws.test_a_cache_that_has_seen_padding_is_never_read,
    "causality": no_logit_depends_on_a_later_token,
    "reach": nothing_is_seen_from_beyond_the_windows,
    "windows kept": clearing_keeps_what_windows_hold,
    "decoding": decoding_is_the_segment_pass,
    "own pace": laws.test_rows_decode_at_their_own_pace_and_end_mid_block,
    "holding still": laws.test_a_row_holds_still_while_others_decode,
    "read_part": laws.test_a_prefix_of_a_block_is_its_token_by_token_form,
    "cuts": cuts_change_nothing,
}
KERNELS, KERNEL_PARTS = ("BlockRecurrentTransformer", "TransformerXL"), 2


def calls(seed, drawn, model):
    """The laws of a draw, as functions of nothing."""
    kept = OF_ALL | (OF_READERS if isinstance(model, Reader) else OF_LANGUAGE_MODELS)
    found = {law: functools.partial(check, f"drawn {seed}") for law, check in kept.items()}
    if not drawn.cut_invariant:
        found.pop("cuts", None)
    turn, number = divmod(seed, len(FAMILIES))
    if turn % len(FAMILIES) == number:  # one of each round, of all families in turn
        found["mesh"] = functools.partial(a_mesh_changes_no_loss_and_no_gradient, seed)
    if drawn.family in KERNELS and turn % 6 == number % 6:
        found["kernels"] = functools.partial(kernels_compute_the_plain_form, seed)
    return found


def abstract(seed):
    """The draw of a seed, and its model with shapes for arrays; a `ValueError` if it is refused."""
    drawn = draw(seed)
    return drawn, nnx.eval_shape(lambda: drawn.build(OneKey()).for_segments(drawn.segment))


def outcomes(seed) -> dict[str, str]:
    """Returns by law "kept", "diverged" or the error; for a refused draw the reason."""
    try:
        drawn, model = abstract(seed)
    except ValueError as error:
        return {"refused": str(error).splitlines()[0]}
    found = {}
    for law, call in calls(seed, drawn, model).items():
        try:
            call()
            found[law] = "kept"
        except Exception as error:
            found[law] = f"{type(error).__name__}: {str(error).strip()[:600]}"
            # The descent of Titans from drawn weights may leave all numbers in a long document.
            if "nan" in found[law] and "TitansMemory" in told(drawn.build):
                found[law] = "diverged"
    return found


def done(log) -> set[int]:
    if not log or not Path(log).exists():
        return set()
    return {json.loads(line)["seed"] for line in Path(log).read_text().splitlines()}


def left(log):
    """The seeds to test, those beyond the first few marked slow."""
    known = done(log)
    slow = () if ASKED else (pytest.mark.slow,)
    return [
        pytest.param(seed, marks=() if seed in {*QUICK_SEEDS, *FOUND} - {*COSTLY} else slow)
        for seed in SEEDS
        if seed not in known
    ]


@pytest.mark.parametrize("seed", left(LOG))
def test_a_drawn_model_keeps_its_laws(seed):
    drawn, begun = draw(seed), time.monotonic()
    found = outcomes(seed)
    if LOG:
        line = dict(seed=seed, family=drawn.family, laws=found)
        line |= dict(segment=drawn.segment, model=told(drawn.build))
        line |= dict(seconds=round(time.monotonic() - begun, 2))
        with open(LOG, "a", encoding="utf-8") as log:
            log.write(json.dumps(line) + "\n")
    if seed % 20 > 17:
        jax.clear_caches()
    fine = "kept", "diverged"
    broken = {law: what for law, what in found.items() if what not in fine and law != "refused"}
    assert not broken, f"{told(drawn.build)}, segments of {drawn.segment}: {broken}"


def test_no_draw_of_every_run_is_refused():
    for seed in {*QUICK_SEEDS, *FOUND}:
        abstract(seed)


STACK, WINDOWS, SLIDING = (
    "BlockRecurrentTransformer",
    "PretrainedLanguageModel",
    "SlidingLanguageModel",
)
TOKENS, XL, READER = "RecurrentMemoryTransformer", "TransformerXL", "PretrainedReader"


def test_draws_put_every_layer_memory_into_every_wrapper():
    bodies = [(*around, model) for around in ((), (TOKENS,)) for model in (WINDOWS, SLIDING)]
    wrappers = [(STACK,), (TOKENS, STACK), *((*body, "BackboneMemory") for body in bodies)]
    expected = {(*wrapper, memory.__name__) for wrapper in wrappers for memory in LAYER_MEMORIES}
    expected |= {(*body, "CellMemory", "RecurrentCell") for body in bodies}
    expected |= {(XL, "CompressiveMemory"), (TOKENS, XL, "CompressiveMemory")}
    pooled = "PooledMemory", "FinalLayerMemory"
    expected |= {(model, memory) for model in (WINDOWS, READER) for memory in pooled}
    assert expected <= {chain for seed in range(SLOW) for chain in chains(draw(seed).build)}
    recent = {(*wrapper, memory.__name__) for wrapper in wrappers for memory in RECENT_MEMORIES}
    seeds = range(RECENT, RECENT + SLOW_RECENT)
    assert recent <= {chain for seed in seeds for chain in chains(draw(seed).build)}
