"""The study of attention agrees with a plain loop over the model's weights."""

import copy
import json
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from gin_settings import bound
from random_runs import random_run
from tiny_run import TXL

from brt.data.vocabularies.base import BEGIN, ByteVocabulary
from brt.models.attention_weights import AttentionLayout
from brt.studies import attention
from brt.studies.attention import Attention, add_lines
from brt.studies.attention_measures import Parts, best_line
from brt.studies.output import table, write_study
from brt.studies.study import content, run_study

T, M, S = 16, 24, 5
ALL = np.arange(7)
XL = (*TXL, *bound("TransformerXL", num_layers=3, width=12, memory_length=M))
RMT = (
    *XL,
    "Trainer.model = @RecurrentMemoryTransformer",
    "TransformerXL.memory_length = 0",
    f"RecurrentMemoryTransformer.num_memory = {S}",
)


@pytest.fixture(scope="module")
def xl(tmp_path_factory):
    with random_run(tmp_path_factory.mktemp("xl"), *XL, length=T, window=T) as run:
        yield run


@pytest.fixture(scope="module")
def rmt(tmp_path_factory):
    with random_run(tmp_path_factory.mktemp("rmt"), *RMT, length=T, window=T) as run:
        yield run


def weights_of(run):
    """Document by document: every whole segment's number and weights, of the model itself."""
    model = run.experiment.bind_evaluated(run.params, T)
    read = jax.jit(model.attention_weights)
    for document in ALL:
        tokens = run.store.tokens(document).astype(int)
        inputs, caches = np.concatenate([[BEGIN], tokens[:-1]]), model.init_caches(1)
        for number in range(len(tokens) // T):
            segment = inputs[number * T : (number + 1) * T][None].astype(np.int32)
            found, _, caches = read(segment, caches)
            yield number, jax.tree.map(np.asarray, found)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_attention_by_distance_is_the_mean_with_a_full_memory(xl):
    found = Attention(tokens=10**6).measure(xl, {}, ALL, seed=0)
    totals, count = {name: np.zeros((3, 2, M + T)) for name in ("attention", "a", "b", "d")}, 0
    for number, weights in weights_of(xl):
        if number * T < M:
            continue
        count += T
        for layer, weights_BHTJ in enumerate(weights.weights):
            terms = weights.terms[layer]
            for i in range(T):
                seen = slice(0, M + i + 1)
                rows = {"attention": weights_BHTJ[0, :, i, seen]}
                rows |= {name: softmax(terms[name][0, :, i, seen]) for name in ("a", "b", "d")}
                for name, row_HJ in rows.items():
                    totals[name][layer, :, : M + i + 1] += row_HJ[:, ::-1]
    assert found["numbers"]["segments"] * T == count > 0
    for name, total in totals.items():
        array = found["arrays"][name if name == "attention" else f"term_{name}"]
        expected = total.reshape(6, M + T)[:, ::-1] / count
        assert np.allclose(array, expected, atol=2e-6)
        assert np.allclose(array.sum(-1), 1, atol=1e-5)


def test_term_d_is_equal_for_all_tokens_and_terms_sum_to_scores(xl):
    found = next(weights for number, weights in weights_of(xl) if number * T >= M)
    assert found.full_B.all()
    for weights_BHTJ, terms in zip(found.weights, found.terms, strict=True):
        d_HTJ = terms["d"][0]
        for i in range(1, T):
            # The key so far back has the same bias for every query.
            assert np.allclose(d_HTJ[:, i, i : M + i + 1], d_HTJ[:, 0, : M + 1], atol=1e-5)
        scores = sum(np.asarray(term, np.float64) for term in terms.values())[0]
        weights = softmax(np.where(found.visible_BXJ[0], scores, -np.inf))
        assert np.allclose(weights, weights_BHTJ[0], atol=1e-5)


def test_wide_heads_have_a_fifth_of_their_memory_marked(xl):
    found = Attention(tokens=10**6).measure(xl, {}, ALL, seed=3)
    wide = [entry for entry in found["maps"] if entry["array"].startswith("wide")]
    assert [entry["title"].split(": ")[1].split(",")[0] for entry in wide] == [
        f"layer {n}" for n in (1, 2, 3)
    ]
    for entry, text in zip(wide, found["texts"], strict=True):
        map_TJ = found["arrays"][entry["array"]]
        assert map_TJ.shape == (T, M + T) and np.allclose(map_TJ.sum(-1), 1, atol=1e-5)
        assert len(entry["marked"]) == round(0.2 * M)
        assert sum(flag for _, flag in text["parts"]) in (round(0.2 * M), round(0.2 * M) - 1)
        shown = "".join(part for part, _ in text["parts"])
        assert any(shown in xl.vocabulary.decode(xl.store.tokens(document)) for document in ALL)


@pytest.mark.parametrize(
    ("offset", "shown"), [(3, "aBcdef"), (4, "abCdef"), (6, "abcdEf"), (7, "bcdeF"), (0, "abc")]
)
def test_keys_have_the_text_of_the_document_they_are_in(offset, shown):
    """A segment of a contiguous stream may begin before its document, or end after it."""
    letters = np.frombuffer(b"abcdef", np.uint8)
    store = SimpleNamespace(tokens=lambda document, start, stop: letters[start:stop])
    run = SimpleNamespace(vocabulary=ByteVocabulary(), store=store)
    layout, study = AttentionLayout((-5, -4, -3, -2, -1), 0, 4, 0), content({}, [], "", texts=[])
    study |= {"arrays": {}, "maps": []}
    map_LHXJ = np.zeros((1, 1, 4, 9))
    map_LHXJ[..., 4] = 1  # the token before the segment
    attention._add_example(study, run, layout, [(0, 0)], map_LHXJ, 0, offset)
    parts = study["texts"][0]["parts"]
    assert "".join(text.upper() if marked else text for text, marked in parts) == shown


def test_parts_of_a_segment_are_those_of_the_model_s_mask(rmt):
    parts = Parts.of(rmt.model.attention_layout(T))
    assert parts == Parts(0, S, T, S) and parts.borders() == [S, S + T]
    _, weights = next(weights_of(rmt))
    for weights_BHXJ in weights.weights:
        map_XJ = weights_BHXJ[0].sum(0)
        blocks = {name: map_XJ[block] for name, block in parts.blocks().items()}
        assert set(blocks) == {"writes tokens to memory", "reads memory", "rewrites memory"}
        shapes = [block.shape for block in blocks.values()]
        assert shapes == [(S, T), (T, S), (S, S)] and all((b > 0).all() for b in blocks.values())
        assert (map_XJ[:S, S:] == 0).all() and (map_XJ[S : S + T, S + T :] == 0).all()


def test_the_best_lines_are_those_of_the_mean_maps(rmt):
    found = Attention(tokens=10**6).measure(rmt, {}, ALL, seed=0)
    total, count = np.zeros((3, 2, S + T + S, S + T + S)), 0
    for number, weights in weights_of(rmt):
        if number:
            total += np.stack([weights_BHXJ[0] for weights_BHXJ in weights.weights])
            count += 1
    for name, (rows, columns) in Parts.of(rmt.model.attention_layout(T)).blocks().items():
        masses = [
            best_line(total[layer, head, rows, columns] / count).mass
            for layer in range(3)
            for head in range(2)
        ]
        mass = found["numbers"][f"{name.replace(' ', '_')}/mass_on_line"]
        assert mass == pytest.approx(max(masses), rel=1e-4)
    assert "along a" in found["summary"]
    for entry in found["maps"]:
        assert entry["x_borders"] == entry["y_borders"] == [S, S + T]


def test_first_segments_alone_have_no_line_of_a_memory(rmt):
    one = ALL[rmt.store.lengths_D < 2 * T]
    found = Attention(tokens=10**6).measure(rmt, {}, one, seed=0)
    assert found["summary"] == attention.NOTHING_READ
    assert found["maps"] == [] and not any("mass" in name for name in found["numbers"])


def lines_of(parts, maps, of_samples):
    """The study's content where such maps were read, and nothing else."""
    study = content({}, [], "", arrays={}, maps=[], texts=[])
    add_lines(study, parts, maps, of_samples)
    return study


@pytest.mark.parametrize("planted", ["diagonal", "anti-diagonal"])
def test_a_planted_line_is_named_and_even_attention_is_none(planted):
    parts, heads = Parts(0, 6, 6, 6), 2
    rows, columns = parts.blocks()["writes tokens to memory"]
    maps = [np.full((2, heads, 18, 18), 1 / 18) for _ in range(3)]
    line = np.eye(6) if planted == "diagonal" else np.eye(6)[::-1]
    maps[1][1, 0, rows] = 0
    maps[1][1, 0, rows, columns] = line
    found = lines_of(parts, maps, of_samples=True)
    assert found["numbers"]["writes_tokens_to_memory/mass_on_line"] == 1
    article = "a" if planted == "diagonal" else "an"
    text = f"Segment 2, layer 2, head 3 writes tokens to memory along {article} {planted}: 1.000"
    assert found["summary"].startswith(text)
    assert [entry["title"] for entry in found["maps"]] == [text.split(" along")[0]]


def test_a_reordered_memory_is_read_one_key_a_row():
    parts = Parts(0, 8, 8, 8)
    rows, columns = parts.blocks()["reads memory"]
    maps = [np.full((1, 2, 24, 24), 1 / 24)]
    maps[0][0, 1, rows] = 0
    maps[0][0, 1, rows, columns] = 0.9 * np.eye(8)[[3, 6, 1, 7, 0, 4, 2, 5]]
    found = lines_of(parts, maps, of_samples=False)
    assert found["numbers"]["reads_memory/mass_on_one_key"] == pytest.approx(0.9)
    text = "layer 1, head 2 reads memory one key a row, in an order of its own: 0.900"
    assert text in found["summary"]


def test_maps_of_a_task_are_those_of_segments_over_samples(tmp_path):
    task = (
        'Trainer.stream = "samples"',
        *bound("Corpus", source="@CopyTask()"),
        *bound("CopyTask", length=8, num_symbols=4, num_train=20, num_validation=7, num_test=5),
        *bound("Trainer", segment_length=8, segments_per_step=3, tokens_per_step=48),
        "TransformerXL.memory_length = 8",
    )
    with random_run(tmp_path, *XL, *task, length=8, window=8) as run:
        found = Attention(tokens=10**6).measure(run, {}, np.arange(7), seed=0)
        model = run.experiment.bind_evaluated(run.params, 8)
        read, best = jax.jit(model.attention_weights), 0.0
        caches, maps = model.init_caches(7), []
        tokens_BL = np.stack([run.store.tokens(sample) for sample in range(7)]).astype(np.int32)
        for number in range(3):
            weights, _, caches = read(tokens_BL[:, 8 * number : 8 * number + 8], caches)
            maps.append([np.asarray(weights_BHTJ).mean(0) for weights_BHTJ in weights.weights])
        for layers in maps:
            for map_HTJ in layers:
                best = max(best, *(best_line(map_TJ[:, :8]).mass for map_TJ in map_HTJ))
    assert found["numbers"]["reads_the_cache/mass_on_line"] == pytest.approx(best, rel=1e-4)
    # In a sample's first segment the cache is empty; the other two are full.
    assert found["numbers"]["segments"] == 2 * 7


def test_the_study_is_written_with_its_arrays_beside_it(xl):
    found = run_study(Attention(), xl)
    path = write_study(found)
    content = json.loads(Path(path).read_text())
    with np.load(xl.workdir / "studies" / content["arrays"], allow_pickle=False) as arrays:
        assert {entry["array"] for entry in content["maps"]} == set(arrays.files)
    assert "Widest heads" in table(found)


def test_a_model_that_shows_no_attention_is_named(xl):
    class Other:
        pass

    run = copy.copy(xl)
    run.experiment = SimpleNamespace(evaluated_model=lambda length: Other())
    with pytest.raises(ValueError, match=r"such as TransformerXL and .* holds a Other"):
        Attention().measure(run, {}, ALL, 0)
