"""Models whose attention can be drawn: the tokens of keys, against their contents."""

import functools

import jax
import numpy as np
import pytest
from architectures import VOCABULARY, random_model
from tiny_models import quick_jit, wide_types  # noqa: F401

from brt.models.attention_weights import ShowsAttention

B, T, V, SEGMENTS = 2, 4, VOCABULARY, 4
XL = dict(same_length=False, clamp_length=None)
LEARNED = XL | dict(encoding="learned", position_rows=7)
MODELS = {
    "xl": ("txl_same_length", XL | dict(memory_length=6)),
    "no memory": ("txl_same_length", XL | dict(memory_length=0, encoding="absolute")),
    "learned": ("txl_same_length", LEARNED | dict(memory_length=3)),
    "rmt": ("rmt", dict(num_memory=2, memory_length=0)),
    "rmt, cache": ("rmt", dict(num_memory=2, memory_length=11)),
    "start, cache": ("rmt", dict(num_memory=2, memory_length=11, memory_at_end=False)),
}
every_model = pytest.mark.parametrize("name", MODELS)


@functools.cache
def built(name):
    """A model of random parameters, and its two ways to read a segment, compiled once."""
    with jax.enable_x64(True):
        kind, settings = MODELS[name]
        model = random_model(kind, 1, "float64", num_layers=2, **settings).for_segments(T)
    read = quick_jit(lambda *given: model(*given)[1])
    draw = quick_jit(lambda *given: model.attention_weights(*given)[0])
    return model, read, draw


def last_weights(name, tokens_NBT):
    """The weights of the last segment, after all segments before it."""
    model, read, draw = built(name)
    caches = model.init_caches(B)
    for tokens_BT in tokens_NBT[:-1]:
        caches = read(tokens_BT, caches)
    return draw(tokens_NBT[-1], caches)


@every_model
def test_weights_are_the_softmax_of_the_terms_of_visible_keys(name):
    model = built(name)[0]
    assert isinstance(model, ShowsAttention)
    layout = model.attention_layout(T)
    X, J = len(layout.query_tokens), len(layout.key_tokens)
    tokens = np.random.default_rng(0).integers(0, V, (SEGMENTS, B, T)).astype(np.int32)
    found = last_weights(name, tokens)
    assert len(found.weights) == len(found.terms) == 2 and found.visible_BXJ.shape == (B, X, J)
    assert np.asarray(found.full_B).all()
    relative = name not in ("no memory", "learned")
    for weights_BHXJ, terms in zip(found.weights, found.terms):
        assert weights_BHXJ.shape == (B, 2, X, J)
        assert list(terms) == (list("abcd") if relative else [])
        visible = np.asarray(found.visible_BXJ)[:, None]
        if relative:
            scores = np.where(visible, sum(terms.values()), -np.inf)
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            weights /= weights.sum(axis=-1, keepdims=True)
            np.testing.assert_allclose(weights_BHXJ, weights, rtol=0, atol=1e-12)
        else:
            np.testing.assert_allclose(np.asarray(weights_BHXJ).sum(-1), 1, atol=1e-12)
            assert (np.where(visible, 0, weights_BHXJ) == 0).all()


@every_model
def test_a_cache_that_may_take_more_is_not_full(name):
    model, memory = built(name)[0], MODELS[name][1]["memory_length"]
    tokens = np.random.default_rng(0).integers(0, V, (SEGMENTS, B, T)).astype(np.int32)
    full = [bool(last_weights(name, tokens[:n]).full_B.all()) for n in range(1, SEGMENTS + 1)]
    positions = len(model.attention_layout(T).query_tokens)
    assert full == [n * positions >= memory for n in range(SEGMENTS)]


@pytest.mark.parametrize("name", ["xl", "rmt, cache", "start, cache"])
def test_a_cached_key_changes_with_its_own_token_only(name):
    """In the first layer a token's key is made of its embedding, a memory token's of all before."""
    model = built(name)[0]
    layout = model.attention_layout(T)
    cached = len(layout.cache_tokens)
    queries = [x for x, token in enumerate(layout.query_tokens) if token is not None]
    tokens = np.random.default_rng(0).integers(0, V, (SEGMENTS, B, T)).astype(np.int32)

    def keys(tokens_NBT):
        return np.asarray(last_weights(name, tokens_NBT).terms[0]["a"])[:, :, queries, :cached]

    before, found = keys(tokens), set()
    is_token = np.array([token is not None for token in layout.cache_tokens])
    for back in range(1, 3 * T + 1):
        other = tokens.copy()
        segment, position = divmod((SEGMENTS - 1) * T - back, T)
        other[segment, :, position] = (other[segment, :, position] + 1) % V
        changed = np.abs(keys(other) - before).max(axis=(0, 1, 2)) > 1e-9
        expected = [token == -back for token in layout.cache_tokens]
        np.testing.assert_array_equal(changed & is_token, expected)
        found |= set(np.flatnonzero(changed & is_token))
    assert found == set(np.flatnonzero(is_token)) and len(found) >= 5


@pytest.mark.parametrize(
    "settings",
    [XL | dict(memory_length=6), LEARNED | dict(memory_length=3, published_artefacts=True)],
)
def test_weights_come_with_the_logits_of_the_segment(settings):
    """Also in a model that adds positions as the released code does, once more to the cache."""
    model = random_model("txl_same_length", 1, "float64", num_layers=2, **settings).for_segments(T)
    tokens = np.random.default_rng(0).integers(0, V, (2, B, T)).astype(np.int32)
    read, draw = quick_jit(model.__call__), quick_jit(model.attention_weights)
    caches = read(tokens[0], model.init_caches(B))[1]
    _, logits, after = draw(tokens[1], caches)
    close = functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-12)
    jax.tree.map(close, (logits, after), read(tokens[1], caches))
