"""Reading and writing with a memory equals a plain pass over segments, token by token."""

import copy
import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from architectures import SEGMENT, VOCABULARY, WINDOW, random_model
from marking import slow
from plain_reading import nats_of
from stores import small_vocabulary
from tiny_models import leaves_close, read_segment, wide_types  # noqa: F401
from tiny_run import TXL, build, differing, write_config

from brt.data.vocabularies.base import BEGIN, ByteVocabulary
from brt.generation.document_memory import take_rows
from brt.generation.generator import Generator, NonFiniteLogits
from brt.generation.sampling import Sampling
from brt.models.fast.chunked_losses import CHUNKS

LENGTHS = (0, 1, WINDOW - 1, WINDOW, WINDOW + 1, SEGMENT, 3 * SEGMENT + 5)
WRITTEN = 2 * WINDOW + 3
GREEDY, DRAWN = Sampling(0), Sampling(0.9, top_p=0.95, repetition_penalty=1.1)
SOME = FIRST, SECOND = ("rec_two_layers", "memorizing_bucketed")
SOME_SLOW = FIRST, slow(SECOND)
IDS = small_vocabulary(VOCABULARY)


@functools.cache
def generator_of(name, segment_length=WINDOW, chunk=5):
    with jax.enable_x64(True):
        return Generator(random_model(name, dtype="float64"), IDS, segment_length, chunk)


def prompts(seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, VOCABULARY, length).astype(np.int32) for length in LENGTHS]


def pass_over_segments(model, documents):
    """Logits for each token of each document, by one segment as long as the longest."""
    length = -(-max(map(len, documents)) // WINDOW) * WINDOW
    inputs = np.zeros((len(documents), length), np.int32)
    for row, document in enumerate(documents):
        inputs[row, : len(document)] = [BEGIN, *document[:-1]]
    starts_B = np.ones(len(documents), bool)
    logits_BTV, _ = read_segment(model, inputs, starts_B, model.init_caches(len(documents)))
    return [np.asarray(x[: len(d)]) for x, d in zip(logits_BTV, documents)]


assert_close = functools.partial(leaves_close, tolerance=1e-9)


@pytest.mark.parametrize("name", ["qrnn", *SOME_SLOW])
def test_segments_together_change_no_memory_and_no_score(name):
    one, texts = generator_of(name), prompts()
    together = Generator(one.model, IDS, WINDOW, 5, segments_together=2)
    memory = one.read(prompts(seed=1))
    assert_close(together.score(texts, memory), one.score(texts, memory))
    assert_close(together.read(texts), one.read(texts))


@pytest.mark.parametrize("name", ["slide", "qrnn", "txl_same_length", *SOME])
def test_greedy_writing_takes_the_best_token_of_the_forward_pass(name):
    # Prompts of every awkward length in one batch: each row is checked against a pass of its own.
    generator, texts = generator_of(name, None if name.startswith("txl") else WINDOW), prompts()
    memory = generator.read(texts)
    assert memory.position_B.tolist() == list(LENGTHS)
    writing = generator.write(memory, WRITTEN, GREEDY).run()
    documents = [[*text, *new] for text, new in zip(texts, writing.tokens)]
    for row, logits_TV in enumerate(pass_over_segments(generator.model, documents)):
        new_TV = logits_TV[LENGTHS[row] :]
        assert writing.tokens[row] == new_TV.argmax(axis=-1).tolist()
        expected = nats_of(new_TV, writing.tokens[row])
        np.testing.assert_allclose(writing.nats[row], expected, atol=1e-9)
    assert writing.memory.position_B.tolist() == [n + WRITTEN for n in LENGTHS]
    for row, document in enumerate(documents):
        P = generator.model.period
        recent = [BEGIN] * P + document
        assert writing.memory.recent_BP[row].tolist() == recent[-P:]


@pytest.mark.parametrize("name", SOME_SLOW)
def test_a_text_read_in_parts_is_the_text_read_at_once(name):
    generator, text = generator_of(name), prompts()[-1]
    whole, (nats_T,) = generator.score([text])
    (logits_TV,) = pass_over_segments(generator.model, [text])
    np.testing.assert_allclose(nats_T, nats_of(logits_TV, text), atol=1e-9)
    memory, parts = None, []
    for part in np.split(text, [0, 6, 7, 12, 13]):
        memory, (nats,) = generator.score([part], memory)
        parts.append(nats)
    assert_close(memory, whole)
    np.testing.assert_allclose(np.concatenate(parts), nats_T, atol=1e-9)
    # Beyond the fill count, one memory has read padding of a segment and the other nothing.
    assert_close(generator_of(name, SEGMENT).read([text]), whole)


@pytest.mark.parametrize("length", [4, slow(8), 32])
def test_generation_reads_in_the_segments_of_evaluation(tmp_path, length):
    """Read at once and read in pieces are the same, whatever the trainer's segments."""
    lines = *TXL, f"Evaluation.segment_length = {length}"
    experiment = build(write_config(tmp_path, *lines)).experiment
    assert experiment.trainer.segment_length == 16
    params = jax.tree.map(lambda x: 3 * x, experiment.init_params())
    generator = Generator.of_experiment(experiment, params, "here")
    text = np.random.default_rng(0).integers(97, 122, 40)
    _, (once,) = generator.score([text])
    memory, parts = None, []
    for part in np.split(text, [3, 5, 21, 22]):
        memory, (nats,) = generator.score([part], memory)
        parts.append(nats)
    np.testing.assert_allclose(np.concatenate(parts), once, atol=1e-5)


@pytest.mark.parametrize("name", SOME_SLOW)
def test_documents_in_one_batch_read_and_write_as_each_alone(name):
    generator, texts = generator_of(name), prompts()
    memory = generator.read(texts)
    memory = generator.read(texts[::-1], memory)  # now each stands somewhere in a block
    together = generator.write(memory, WRITTEN, DRAWN, seed=5).run()
    for row in (1, 4, 6):  # the last has nothing to read any more, and stands inside a block
        alone = generator.read([texts[::-1][row]], generator.read([texts[row]]))
        assert_close(take_rows(memory, [row]), alone)
        writing = generator.write(alone, WRITTEN, DRAWN, seed=5 + row).run()
        assert writing.tokens[0] == together.tokens[row]
        assert_close(take_rows(together.memory, [row]), writing.memory)


def test_interleaved_streams_are_independent():
    generator, texts = generator_of(FIRST), prompts()
    memories = [generator.read([texts[row]]) for row in (3, 6)]
    before = jax.tree.map(np.array, memories)

    def start(row):
        return generator.write(memories[row], WRITTEN, DRAWN, seed=row)

    alone, mixed = [start(row).run() for row in (0, 1)], [start(row) for row in (0, 1)]
    for _ in zip(*mixed):
        pass
    for writing in mixed:
        writing.run()
    for found, expected in zip(mixed, alone):
        assert found.tokens == expected.tokens and found.texts == expected.texts
        assert not differing(found.memory, expected.memory)
    assert not differing(memories, before)


def test_where_the_host_looks_changes_nothing():
    text = prompts()[-1]
    writings = [
        generator.write(generator.read([text]), WRITTEN, DRAWN, seed=1).run()
        for generator in (generator_of(FIRST), generator_of(FIRST, chunk=1))
    ]
    assert writings[0].tokens == writings[1].tokens
    assert len(set(writings[0].tokens[0])) > 3


def test_nothing_is_compiled_again_whatever_the_position(tmp_path):
    generator, text = generator_of(SECOND), prompts()[-1]
    prefill = generator.prefill
    programs = generator.decode_loop, prefill._segment, prefill._part, prefill._end

    def go_on(memory, temperature):
        memory = generator.read([text], memory)
        drawn = DRAWN._replace(temperature=temperature)
        return generator.write(memory, 7, drawn, seed=3).run().memory

    memory = go_on(go_on(generator.begin(), 1.0), 1.0)
    counts = [program._cache_size() for program in programs]
    assert min(counts) >= 1
    generator.save(tmp_path / "memory", memory)
    for again in (generator.load(tmp_path / "memory"), take_rows(memory, [0])):
        for _ in range(3):
            again = go_on(again, 0.7)
    assert [program._cache_size() for program in programs] == counts


def test_a_row_that_has_stopped_holds_still_while_others_go_on():
    generator = generator_of(FIRST)
    memory = generator.read(prompts())
    free = generator.write(memory, WRITTEN, GREEDY).run()
    stop = free.texts[4][3:5]  # ends row 4 inside a chunk
    writing = generator.write(memory, WRITTEN, GREEDY, stop=[stop]).run()
    assert writing.stopped[4] and not all(writing.stopped)
    for row, text in enumerate(free.texts):
        start = text.find(stop)
        assert writing.stopped[row] == (start >= 0)
        count = start + len(stop) if start >= 0 else WRITTEN
        assert writing.tokens[row] == free.tokens[row][:count]
        assert len(writing.nats[row]) == count
        assert writing.texts[row] == (text[:start] if start >= 0 else text)
    expected = generator.read([np.array(tokens) for tokens in writing.tokens], memory)
    assert_close(writing.memory, expected)


def test_ids_beyond_the_vocabulary_are_never_written():
    model = random_model("slide", dtype="float64")
    model.embedding_VD[...] = model.embedding_VD[...].at[5:].mul(50.0)  # the likeliest, or least
    few = Generator(model, small_vocabulary(5), WINDOW, 5)
    writing = few.write(few.begin(3), WRITTEN, Sampling(2.0)).run()
    assert all(token < 5 for tokens in writing.tokens for token in tokens)


def test_logits_that_are_no_numbers_keep_the_written_text():
    generator = copy.copy(generator_of(FIRST))
    memory = generator.read([[1, 2]])
    expected = generator.write(memory, 2, DRAWN).run()
    # From its second block on a document has a state that no number is in.
    generator.params = jax.tree_util.tree_map_with_path(
        lambda path, x: x * jnp.nan if "attention_gate" in str(path) else x, generator.params
    )
    writing = generator.write(memory, 9, DRAWN)
    with pytest.raises(NonFiniteLogits, match="token 4 of document 0 are not finite"):
        writing.run()
    assert writing.tokens == expected.tokens and writing.texts == expected.texts
    assert writing.nats == expected.nats and writing.memory.position_B.tolist() == [4]
    with pytest.raises(NonFiniteLogits, match="token 4 of document 0 are not finite"):
        generator.score([[1, 2, 3, 4, 5]])


@pytest.mark.parametrize("name", ["txl_same_length", "rmt_txl", slow("armt")])
def test_segments_are_the_model_s_own_without_a_length(name):
    model = random_model(name)
    default, own = (Generator(model, IDS, length) for length in (None, model.period))
    text = np.random.default_rng(0).integers(0, VOCABULARY, 2100)
    assert not differing(default.score([text]), own.score([text]))


def test_scores_make_no_array_of_tokens_times_vocabulary(monkeypatch):
    monkeypatch.setitem(CHUNKS, "cpu", 1)
    generator, ids_BT = generator_of(FIRST, SEGMENT), jnp.zeros((2, SEGMENT), jnp.int32)
    arguments = ids_BT, ids_BT, generator.model.init_caches(2), jnp.ones(2, bool)
    step = generator.prefill._segment.lower(generator.params, *arguments, score=True)
    shapes = re.findall(rf"tensor<([\dx]+)x{VOCABULARY}xf64>", step.as_text())
    rows = [math.prod(map(int, shape.split("x"))) for shape in shapes]
    assert 0 < max(rows) < 2 * SEGMENT


def test_a_list_of_ids_is_one_text_and_rows_are_several():
    generator, ids = generator_of(FIRST), [3, 1, 2]
    ids_BT = np.arange(2 * WINDOW).reshape(2, -1) % VOCABULARY
    assert not differing(generator.read(ids_BT), generator.read([*ids_BT]))
    assert not differing(generator.read(ids), generator.read([np.array(ids)]))
    assert not differing(generator.score(tuple(ids)), generator.score([ids]))


@pytest.mark.parametrize("rows", [[2], [-3], [0, 5]])
def test_documents_that_a_memory_lacks_are_refused(rows):
    with pytest.raises(IndexError):
        take_rows(generator_of(FIRST).begin(2), rows)


def test_a_model_and_what_does_not_fit_it():
    model = random_model("slide")
    with pytest.raises(ValueError, match=r"256 .* 17"):
        Generator(model, ByteVocabulary())
    with pytest.raises(ValueError, match=r"segment_length = 6 .* 4 tokens"):
        Generator(model, IDS, segment_length=6)
    advice = rf"{SEGMENT} tokens: pass model\.for_segments\({2 * SEGMENT}\)"
    with pytest.raises(ValueError, match=rf"segment_length = {2 * SEGMENT} .* {advice}"):
        Generator(random_model("txl_same_length").for_segments(SEGMENT), IDS, 2 * SEGMENT)
    generator = generator_of("slide")
    with pytest.raises(ValueError, match=r"2 texts .* 1 document"):
        generator.read(["\1", "\2"], generator.begin())
    with pytest.raises(ValueError, match="Token id 17 is not in vocabulary"):
        generator.read([[1, 17]])
