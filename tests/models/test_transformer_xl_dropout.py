"""Dropout of Transformer-XL is where the released code has it: one test per position.

In each test the model is reduced until its output shows a single mask: an entry with the mask is 0
or, at a rate of 0.5, twice the entry without. The masks of different positions are independent, so
each is tested with all others in use.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tiny_models import OneKey, equations_of, parameters, quick_jit, randomised

from brt.models.transformer_xl.model import TransformerXL

B, T, M, LAYERS = 4, 8, 5, 2
V, D, F, H, K = 17, 24, 16, 3, 4
SIZES = {"vocabulary_size": V, "num_layers": LAYERS, "memory_length": M}
SIZES |= {"width": D, "feed_forward_size": F, "num_heads": H, "head_size": K}
KEY = jax.random.key(5)
VARIATIONAL = pytest.mark.parametrize("variational", [False, True])


def model(**settings):
    """Two layers with random parameters and the norm before them, so that residuals show all."""
    made = nnx.eval_shape(lambda: TransformerXL(OneKey(), norm="pre", **SIZES, **settings))
    return randomised(made, 1)


def put(module, **values):
    """Replaces parameters of a module by numbers or arrays."""
    for name, value in values.items():
        leaf = getattr(module, name)
        leaf[...] = jnp.broadcast_to(jnp.asarray(value, leaf[...].dtype), leaf[...].shape)


def silence(model, attention=True, mlp=True):
    """Sets the outputs of attention or of the MLP to zero."""
    for layer in model.layers:
        if attention:
            put(layer, output_AD=0.0)
        if mlp:
            put(layer.feed_forward, output_FD=0.0, output_bias_D=0.0)
    return model


@functools.partial(quick_jit, static_argnums=0)
def _read(graph, params, tokens_2BT, key):
    bound, shown = nnx.merge(graph, params), []
    _, caches, _ = bound.stack(bound.embed(tokens_2BT[0]), bound.init_caches(B))
    x_BTD, visible_BTJ = bound.embed(tokens_2BT[1]), bound.visible(caches, T)
    contents = bound.contents(caches)
    out_BTD, inputs = bound.forward(x_BTD, contents, visible_BTJ, key, shown=shown)
    return x_BTD, out_BTD, inputs, (contents, visible_BTJ), shown


def read(model, key=KEY):
    """Reads two segments. Returns of the second: embeddings, output, inputs of each layer, pairs of
    memories and visible keys, and a `LayerAttention` of each layer."""
    tokens_2BT = jnp.asarray(np.random.default_rng(3).integers(0, V, (2, B, T)))
    return _read(*nnx.split(model), tokens_2BT, key)


def mask(found, whole):
    """1 where an entry was kept, 0 where it was dropped, -1 where it shows neither."""
    found, whole = (np.broadcast_to(np.asarray(x, np.float64), found.shape) for x in (found, whole))
    known = np.abs(whole) > 1e-3
    dropped, kept = np.abs(found) < 1e-5, np.abs(found - 2 * whole) < 1e-4 * (1 + np.abs(whole))
    assert (dropped | kept)[known].all(), "neither dropped nor doubled"
    return np.where(known, kept, -1)


def check(mask_BTX, variational, rows=True):
    """The mask has ones and zeros, is the rows' own, and constant along time if variational."""
    kept_BTX, dropped_BTX = mask_BTX == 1, mask_BTX == 0
    least = 0.05 if variational else 0.25  # one draw for many entries
    assert least < kept_BTX.sum() / (kept_BTX | dropped_BTX).sum() < 1 - least
    changes = (kept_BTX.any(axis=1) & dropped_BTX.any(axis=1)).any()
    assert changes != variational
    assert (kept_BTX.any(axis=0) & dropped_BTX.any(axis=0)).any() == rows


@VARIATIONAL
def test_embeddings_are_dropped(variational):
    x_BTD, _, inputs, *_ = read(model(dropout=0.5, variational_dropout=variational))
    check(mask(inputs[0], x_BTD), variational)


@VARIATIONAL
def test_the_output_of_the_last_layer_is_dropped(variational):
    made = silence(model(dropout=0.5, variational_dropout=variational))
    _, out_BTD, inputs, *_ = read(made)
    np.testing.assert_array_equal(inputs[0], inputs[1])  # the layers add nothing
    check(mask(out_BTD, inputs[1]), variational)


@VARIATIONAL
def test_what_attention_adds_is_dropped(variational):
    made = silence(model(dropout=0.5, variational_dropout=variational), attention=False)
    for layer in made.layers:
        put(layer, positions_DA=0.0)  # then dropped distances change nothing
    _, _, (first_BTD, second_BTD), seen, _ = read(made)
    (memory_BMD, _), visible = seen
    distances = made.distances(jnp.arange(M + T - 1, -1, -1))
    whole_BTD = made.layers[0](first_BTD, memory_BMD, visible, distances)
    check(mask(second_BTD - first_BTD, whole_BTD - first_BTD), variational)


BIAS = 3.0


def mlp(variational):
    """Returns the output of the first layer's MLP, F units and D - F constants, and the units."""
    made = silence(model(dropout=0.5, variational_dropout=variational), mlp=False)
    for layer in made.layers:
        put(layer.feed_forward, output_FD=jnp.eye(F, D), output_bias_D=BIAS)
    _, _, (first_BTD, second_BTD), *_ = read(made)
    only = made.layers[0]
    h_BTF = only.feed_forward_norm(first_BTD) @ only.feed_forward.hidden_DF[...]
    h_BTF = jax.nn.relu(h_BTF + only.feed_forward.hidden_bias_F[...])
    return second_BTD - first_BTD, h_BTF


@VARIATIONAL
def test_what_the_network_adds_is_dropped(variational):
    added_BTD, _ = mlp(variational)
    check(mask(added_BTD[..., F:], BIAS), variational)


@VARIATIONAL
def test_hidden_units_are_dropped(variational):
    added_BTD, h_BTF = mlp(variational)
    added_BTF = added_BTD[..., :F]
    shown_BTF = added_BTF != 0  # where the mlp's output was not dropped as a whole
    units_BTF = np.where(shown_BTF, added_BTF / 2 - BIAS, 0.0)
    check(mask(units_BTF, np.where(shown_BTF, h_BTF, 0.0)), variational)


@VARIATIONAL
def test_distances_are_dropped_once_for_all_rows_and_layers(variational):
    found_CX = []
    for k in range(K):
        made = model(dropout=0.5, variational_dropout=variational)
        # Term (d) of head h is then channel h K + k of the encoding of the distance.
        for layer in made.layers:
            put(layer, positions_DA=jnp.eye(D, H * K))
        put(made, position_bias_HK=jnp.eye(K)[k])
        terms, known = (
            [np.asarray(look.terms.position_bias_BHTJ) for look in read(made, key)[-1]]
            for key in (KEY, None)
        )
        np.testing.assert_array_equal(terms[0], terms[1])
        d_HTJ = terms[0][0]
        np.testing.assert_array_equal(terms[0], np.broadcast_to(d_HTJ, terms[0].shape))
        # The last query sees every distance, the farthest first; the others what it sees less far.
        found_CX += [*mask(d_HTJ[:, -1], known[0][0, :, -1])]
        for t in range(T):
            np.testing.assert_array_equal(d_HTJ[:, t, : M + t + 1], d_HTJ[:, -1, T - 1 - t :])
    check(np.stack(found_CX, axis=-1)[None], variational, rows=False)


def test_attention_weights_are_dropped_each_for_itself():
    made = silence(model(attention_dropout=0.5), attention=False)
    assert made.dropout == 0.5 and made.drops.rate == 0  # a key is drawn for it
    for layer in made.layers:
        # Equal scores, and values of one: a head's output counts the weights that were kept.
        put(layer, queries_DA=0.0, positions_DA=0.0, values_DA=jnp.eye(1, D).T)
        put(layer.attention_norm, scale_D=0.0, bias_D=1.0)
        put(layer, output_AD=jnp.eye(H * K, D))
    put(made, content_bias_HK=0.0, position_bias_HK=0.0)
    _, _, (first_BTD, second_BTD), seen, _ = read(made)
    seen_BT1 = np.asarray(seen[1]).sum(axis=-1)[..., None]
    counts_BTA = np.asarray(second_BTD - first_BTD)[..., : H * K] * seen_BT1 / 2
    np.testing.assert_allclose(counts_BTA, np.round(counts_BTA), atol=1e-4)
    counts_BTHK = np.round(counts_BTA).reshape(B, T, H, K)
    assert (counts_BTHK == counts_BTHK[..., :1]).all()  # a weight belongs to a head
    counts_BTH = counts_BTHK[..., 0]
    assert (counts_BTH[0] != counts_BTH[1]).any()
    assert (counts_BTH[..., 0] != counts_BTH[..., 1]).any()
    assert 0.3 < counts_BTH.sum() / (H * seen_BT1.sum()) < 0.7


def test_these_are_all_places_and_none_drops_without_a_key():
    made = model(dropout=0.5, attention_dropout=0.5)
    rates = parameters(made)
    jax.tree.map(np.testing.assert_array_equal, rates, parameters(model()))
    x_BTD, caches = jnp.ones((B, T, D)), made.init_caches(B)
    traced = [jax.make_jaxpr(lambda x, k=k: made.stack(x, caches, k))(x_BTD) for k in (KEY, None)]
    drawn = [
        sum(each.primitive.name == "random_bits" for each in equations_of(one.jaxpr))
        for one in traced
    ]
    # Embeddings, distances, the last output; weights, attention, hidden units, mlp a layer.
    assert drawn == [3 + 4 * LAYERS, 0]
