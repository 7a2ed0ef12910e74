"""Memory files: the same memory, of constant size, for the model that wrote it and no other."""

import copy
import os
import struct

import numpy as np
import pytest
from architectures import SEGMENT, VOCABULARY, WINDOW, random_model
from test_generation import IDS
from tiny_run import differing, files_of_at_most

from brt.generation.generator import Generator
from brt.generation.memory_file import model_fingerprint

NAME = "feedback_two_cells"


@pytest.fixture(scope="module")
def generator():
    return Generator(random_model(NAME), IDS, SEGMENT, 5)


@pytest.fixture(scope="module")
def memory(generator):
    return generator.read([np.arange(3 * SEGMENT + 5) % VOCABULARY])


@pytest.fixture
def path(generator, memory, tmp_path):
    generator.save(tmp_path / "book.memory", memory)
    return tmp_path / "book.memory"


def test_a_loaded_memory_is_the_saved_one_bit_for_bit(generator, memory, path):
    loaded = generator.load(path)
    assert not differing(loaded, memory)
    found, expected = (generator.write(m, 2 * WINDOW + 1).run() for m in (loaded, memory))
    assert found.tokens == expected.tokens and found.nats == expected.nats
    assert not differing(found.memory, expected.memory)


def test_the_size_is_constant_and_that_of_the_caches(generator, memory, path, tmp_path):
    empty = generator.begin()
    generator.save(tmp_path / "first", empty)
    generator.save(tmp_path / "last", memory._replace(position_B=np.array([2**31 - 1], np.int32)))
    sizes = [os.path.getsize(p) for p in (path, tmp_path / "first", tmp_path / "last")]
    assert sizes[0] == sizes[1] == sizes[2]
    assert memory.bytes == empty.bytes < sizes[0] < memory.bytes + 4096


def refusal(path, generator, **others):
    with pytest.raises(ValueError, match=str(path)) as error:
        Generator(others.get("model", generator.model), others.get("ids", IDS)).load(path)
    return str(error.value)


def test_a_file_of_another_model_or_vocabulary_is_refused(generator, path):
    assert "another model" in refusal(path, generator, model=random_model(NAME, seed=2))
    assert "another model" in refusal(path, generator, model=random_model("rec_two_layers"))
    other = copy.copy(IDS)
    other.fingerprint = "f" * 64
    assert "vocabulary bytes of size 17" in refusal(path, generator, ids=other)


def test_the_fingerprint_covers_parameters_and_settings():
    def fingerprint(**settings):
        return model_fingerprint(random_model(NAME, **settings))

    usual = fingerprint()
    assert usual == fingerprint(dropout=0.1, remat="layer")
    melodi, dropped = (
        random_model("melodi", dropout=rate, attention_dropout=rate) for rate in (0.0, 0.1)
    )
    assert model_fingerprint(melodi) == model_fingerprint(dropped)
    for others in (
        *({"logits_divisor": "width"}, {"window": 8}, {"gate_form": "meliad"}, {"seed": 2}),
        *({"activation_dtype": "bfloat16"}, {"feedback": False}),
    ):
        assert fingerprint(**others) != usual, others
    model = random_model(NAME)
    scale = model.layers[2].cell.norm.scale_D
    scale[...] = scale[...].at[3].set(np.nextafter(scale[3], np.float32(9)))
    assert model_fingerprint(model) != usual


def test_a_changed_file_is_refused_wherever_it_was_changed(generator, path):
    content = path.read_bytes()
    (header,) = struct.unpack("<Q", content[:8])
    position = content.index(b"29", content.index(b"position"))
    for offset in (0, 9, position, 8 + header, len(content) // 2, len(content) - 1):
        changed = bytearray(content)
        changed[offset] ^= 1
        path.write_bytes(changed)
        refusal(path, generator)


def test_a_file_that_cannot_be_written_leaves_the_earlier_one(generator, path, tmp_path):
    before = path.read_bytes()
    with files_of_at_most(1000), pytest.raises(OSError, match=str(path)):
        generator.save(path, generator.begin())
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["book.memory"]
