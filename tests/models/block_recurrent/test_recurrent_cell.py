"""The recurrent cell: the share that it keeps, and what it refuses."""

import jax.numpy as jnp
import numpy as np
import pytest
from architectures import random_model
from tiny_models import OneKey

from brt.models.block_recurrent.cell import ByHead, CellCarry, RecurrentCell
from brt.models.sizes import Sizes

D, H, K, F, S, W, B = 12, 2, 4, 10, 3, 4, 2


def test_the_share_kept_is_that_of_the_gates():
    settings = dict(gate="fixed", arrangement="dual", num_layers=1, recurrent_layers=(0,))
    cell = random_model("slide", **settings).layers[0].cell
    cell.attention_gate.keep_bias_D[...] = jnp.full(D, np.log(3.0))  # keeps 3/4
    cell.feed_forward_gate.keep_bias_D[...] = jnp.full(D, 0.0)  # keeps 1/2
    states_BSD, block = jnp.ones((B, S, D)), ByHead(*jnp.ones((2, B, H, W, K)))
    metrics = cell.step(cell.prepare(jnp.float32), CellCarry(states_BSD, block), block)[2]
    np.testing.assert_allclose(metrics["kept"], 5 / 8, rtol=1e-6)


def test_sequential_states_need_a_gate_of_their_own():
    settings = dict(num_states=S, order="sequential", arrangement="single")
    with pytest.raises(ValueError, match=r"RecurrentCell\.order.*single"):
        RecurrentCell(OneKey(), Sizes(D, H, K, F), W, **settings)
