"""Parameters of the released implementation, read into brt and replayed."""

import functools
import itertools
import json
import re
from dataclasses import replace

import jax
import numpy as np
import pytest
from architectures import VOCABULARY, WINDOW, random_model
from flax import nnx
from golden import every, needs_recordings
from paper_numpy import Reader, Settings
from paths import GOLDEN
from ragged import ragged_segments
from tiny_models import parameters

from brt.models.checkpoints.meliad import UnsupportedCheckpoint, from_brt_path, load

MELIAD = dict(gate_form="meliad", logits_divisor="width", num_states=5)
CELLS = [
    dict(gate=gate, arrangement=arrangement, recurrent_layers=layers, feedback=feedback)
    for gate, arrangement, layers, feedback in itertools.product(
        ("fixed", "lstm"), ("dual", "single", "skip"), ((1,), (0, 2)), (False, True)
    )
]


def name_of(cell):
    return "-".join(str(value) for value in cell.values()).replace(" ", "")


def meliad_model(**cell):
    """A randomised model meliad could have; its begin row is zero, which meliad does not have."""
    model = random_model("slide", **(MELIAD if cell else {"logits_divisor": "width"}) | cell)
    model.begin_D[...] = model.begin_D[...] * 0
    return model


def exported(model):
    """The parameters under meliad's paths, but the begin row."""
    flat = {
        from_brt_path(path): np.asarray(leaf[...])
        for path, leaf in nnx.to_flat_state(nnx.state(model, nnx.Param))
    }
    assert not flat.pop("begin").any()
    return flat


@pytest.mark.parametrize(
    "cell",
    [
        {},
        *(
            pytest.param(c, marks=[pytest.mark.slow] * (c["feedback"] and c not in CELLS[:4]))
            for c in CELLS
        ),
    ],
    ids=name_of,
)
def test_a_model_survives_the_journey_to_meliads_names_and_back(cell):
    model = meliad_model(**cell)
    flat = exported(model)
    # No two parameters share a name.
    assert len(flat) + 1 == len(jax.tree.leaves(parameters(model)))
    graph, params = nnx.split(model)
    loaded_graph, loaded = nnx.split(load(flat, WINDOW))
    # Equal settings and equal parameters: an equal function.
    assert loaded_graph == graph
    jax.tree.map(np.testing.assert_array_equal, nnx.to_pure_dict(loaded), nnx.to_pure_dict(params))


MEMORY = dict(memorizing_layers=(0, 2), size=8, neighbours=2, search="bucketed")


@pytest.mark.parametrize("cell", [{}, CELLS[2], CELLS[3]], ids=name_of)
def test_an_external_memory_survives_with_its_settings(cell):
    """In layers with a cell too: the released code mixes it in there as it does elsewhere."""
    assert not [name for name in exported(meliad_model(**cell)) if "external_memory" in name]
    model = meliad_model(**MEMORY | cell)
    both = [layer.memory_names == ("cell", "memory") for layer in model.layers]
    assert both == [bool(cell), False, bool(cell)]
    flat = exported(model)
    assert flat["transformer2/external_memory_bias"].shape == (2,)
    assert "transformer2/relative_positions/rel_embedding" not in flat
    options = {name: MEMORY[name] for name in ("size", "neighbours", "search")}
    loaded_graph, loaded = nnx.split(load(flat, WINDOW, **options))
    graph, params = nnx.split(model)
    assert loaded_graph == graph
    jax.tree.map(np.testing.assert_array_equal, nnx.to_pure_dict(loaded), nnx.to_pure_dict(params))


@pytest.mark.parametrize("cell", [{}, CELLS[0]], ids=name_of)
def test_a_memorizing_layer_with_a_position_bias_is_refused(cell):
    """brt's have none, whether they have a cell or not."""
    flat = exported(meliad_model(**cell)) | {"transformer1/external_memory_bias": np.zeros(2)}
    with pytest.raises(UnsupportedCheckpoint, match="transformer1/relative_positions"):
        load(flat, WINDOW, size=8, neighbours=2)


@functools.cache
def example():
    return exported(meliad_model(**CELLS[0]))


@pytest.mark.parametrize("path", ["transformer1/memory/x", "tbase/x"])
def test_a_parameter_without_a_place_is_refused_by_name(path):
    with pytest.raises(UnsupportedCheckpoint, match=path):
        load(example() | {path: np.zeros(2)}, WINDOW)


@pytest.mark.parametrize(
    "path",
    [
        "transformer0/tbase/_kvq/keys_layer/kernel",
        "transformer1/recurrent_tbase/_kvq/position_embeddings",
        "transformer1/recurrent_tbase/post_attn_mlp/gate_bias",
        "transformer1/tbase/attention_scale2",
        "transformer2/relative_positions/rel_embedding",
    ],
)
def test_a_missing_parameter_is_refused_by_name(path):
    flat = dict(example())
    del flat[path]
    with pytest.raises(UnsupportedCheckpoint, match=path):
        load(flat, WINDOW)
    shape = re.escape(str((1, *example()[path].shape)))
    with pytest.raises(UnsupportedCheckpoint, match=f"{path}.*{shape}"):
        load(example() | {path: example()[path][None]}, WINDOW)


def transcribed(model, tokens, starts):
    """Logits, and caches after the first and the last segment, as meliad would record them."""
    recurrent = tuple(i for i, layer in enumerate(model.layers) if layer.num_states)
    settings = Settings(
        *(model.sizes.num_heads, model.sizes.head_size, model.window, recurrent),
        gate_form="meliad",
        feedback=model.feedback,
        logits_divisor="width",
    )
    if recurrent:
        cell = model.layers[recurrent[0]].cell
        gate = getattr(cell, "attention_gate", None) or cell.feed_forward_gate
        settings = replace(settings, gate=gate.kind, arrangement=cell.arrangement)
    wide = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), parameters(model))
    reader, logits, saved = Reader(wide, settings), [], {}
    memories = [reader.begin()] * tokens.shape[1]
    for step, (tokens_BT, starts_B) in enumerate(zip(tokens, starts, strict=True)):
        memories = [reader.begin() if new else old for new, old in zip(starts_B, memories)]
        logits_BTV, memories = zip(*map(reader.read, tokens_BT, memories))
        logits.append(logits_BTV)
        for prefix in ["state_seg0"] * (step == 0) + ["state"] * (step == len(tokens) - 1):
            for index, cache in enumerate(memories[0]):
                for key in cache:
                    name = "recurrent_state" if key == "states" else f"previous_{key}"
                    array = np.stack([memory[index][key] for memory in memories])
                    saved[f"{prefix}/transformer{index}/{name}_test"] = array
    return saved | {"logits": np.stack(logits)}


def recording(gate, arrangement):
    """What meliad would have recorded of a model, written by the transcription."""
    model = meliad_model(gate=gate, arrangement=arrangement, recurrent_layers=(1,))
    corpus = ragged_segments(WINDOW, 8, VOCABULARY, rows=2, seed=6)
    tokens, starts = np.maximum(corpus.tokens[:4], 0), corpus.starts[:4]
    return {
        **{f"params/{path}": array for path, array in exported(model).items()},
        **transcribed(model, tokens, starts),
        "tokens": tokens,
        "start_of_sequence": starts,
        "config_json": json.dumps({"gin_bindings": [f"WINDOW_LENGTH = {WINDOW}"]}),
    }


@pytest.mark.parametrize("arrangement", ["dual", "single", "skip"])
@pytest.mark.parametrize("gate", ["fixed", "lstm"])
def test_what_the_transcription_writes_is_reproduced(check, gate, arrangement):
    assert check(recording(gate, arrangement)) == 0


@every(*(f"meliad_{kind}" for kind in ("xl", "slide", "rec", "feedback")))
def test_the_transcription_writes_what_the_released_code_wrote(file):
    with np.load(file, allow_pickle=False) as archive:
        recorded = dict(archive)
    params = {key[7:]: value for key, value in recorded.items() if key.startswith("params/")}
    window = recorded["state/transformer0/previous_keys_test"].shape[1]
    found = transcribed(load(params, window), recorded["tokens"], recorded["start_of_sequence"])
    assert found.keys() == {name for name in recorded if re.match("logits|state", name)}
    for name, array in found.items():
        np.testing.assert_allclose(array, recorded[name], rtol=0, atol=2e-5, err_msg=name)


@needs_recordings
def test_a_recording_with_one_logit_moved_by_a_thousandth_fails(check, capsys):
    with np.load(GOLDEN / "meliad_xl.npz", allow_pickle=False) as archive:
        arrays = {key: archive[key] for key in archive if not key.startswith("grads")}
    assert check(arrays) == 0
    arrays["logits"] = arrays["logits"].copy()
    arrays["logits"][-1, 1, -1, 3] += 1e-3
    assert check(arrays) == 1
    assert "FAIL" in capsys.readouterr().out


EXACT = GOLDEN / "meliad_memorizing_exact_topk.npz"


@needs_recordings
def test_a_recorded_memory_is_compared_as_its_file_is_named(check, capsys):
    with np.load(EXACT, allow_pickle=False) as archive:
        arrays = {key: archive[key] for key in archive if not key.startswith("grads")}
    assert check(arrays) == 1  # by buckets
    assert "memory" in capsys.readouterr().out
    keys = "database/transformer2/mem_layer_test/wrapped/key_db"
    arrays[keys] = arrays[keys] + 1e-3
    assert check(arrays, name="exact") == 1
    assert "memory 1.0e-03" in capsys.readouterr().out
