"""The diagonal schedule computes the same as a loop over segments."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from architectures import ARCHITECTURES, RELATED, abstract, kinds, random_model
from flax import nnx
from pretrained_architectures import PRETRAINED
from ragged import ragged_segments
from tiny_models import leaves_close, quick_jit

from brt.models.caches import clear_state, select_rows
from brt.models.diagonal import layer_groups, layerwise_of, run_diagonally

ROWS = 3
WITHOUT = {name for name in ARCHITECTURES if name.startswith(("feedback", "rmt", "memtr"))}
"""Models whose first layer reads the last layer's output on the segment before."""
every_architecture = pytest.mark.parametrize(
    "name", [each for each in kinds(slow=RELATED) if each.values[0] not in {*WITHOUT, *PRETRAINED}]
)


def test_layers_that_wait_for_the_last_have_no_diagonal():
    without = {name for name in ARCHITECTURES if abstract(name).layerwise() is None}
    assert without == {*WITHOUT, *PRETRAINED}
    with pytest.raises(ValueError, match=r"Evaluation\.segments_together"):
        layerwise_of(abstract("feedback_fixed_skip"))


def fold(model, x_KBTD, caches, starts_KB, clear):
    empty = model.init_caches(ROWS)

    def read(caches, segment):
        x_BTD, starts_B = segment
        caches = clear_state(caches, empty) if clear else caches
        x_BTD, caches, _ = model.stack(x_BTD, select_rows(starts_B, empty, caches))
        return caches, x_BTD

    caches, y_KBTD = jax.lax.scan(read, caches, (x_KBTD, starts_KB))
    return y_KBTD, caches


def assert_same_as_fold(name, clear):
    entry = ARCHITECTURES[name]
    with jax.enable_x64(True):
        ragged = ragged_segments(entry.window, entry.segment, entry.vocabulary, ROWS, seed=4)
        graph, params = nnx.split(random_model(name, dtype="float64"))

        def run(schedule, caches, tokens, starts):
            model = nnx.merge(graph, params)
            return schedule(model, jax.vmap(model.embed)(tokens), caches, starts, clear)

        run = quick_jit(run, static_argnums=0)
        empty = nnx.merge(graph, params).init_caches(ROWS)
        _, caches = run(fold, empty, ragged.tokens, ragged.starts)
        goes_on = np.roll(ragged.tokens, -2, axis=0), np.roll(ragged.starts, -2, axis=0)
        assert 0 < goes_on[1][0].sum() < ROWS  # some of the carried caches are read
        expected = run(fold, caches, *goes_on)
        leaves_close(run(run_diagonally, caches, *goes_on), expected, 1e-9)


@every_architecture
def test_the_diagonal_is_one_segment_after_another(name):
    """Of documents that start anywhere, from caches of other documents."""
    assert_same_as_fold(name, clear=False)


@pytest.mark.parametrize("name", ["rec_two_layers", "rec_memorizing", "armt"])
def test_the_diagonal_clears_the_state_before_every_segment(name):
    assert_same_as_fold(name, clear=True)


def test_layers_of_one_structure_are_one_computation():
    model = random_model("rec_fixed_dual")
    groups = layer_groups(model, ROWS, ARCHITECTURES["rec_fixed_dual"].segment)
    assert [group.indices for group in groups] == [(0, 2), (1,)]
    embedded = jnp.zeros((5, ROWS, ARCHITECTURES["rec_fixed_dual"].segment, model.width))
    program = jax.make_jaxpr(lambda x: run_diagonally(model, x, model.init_caches(ROWS)))(embedded)
    lengths = [each.params["length"] for each in program.eqns if each.primitive.name == "scan"]
    assert lengths == [5 + 3 - 1]
