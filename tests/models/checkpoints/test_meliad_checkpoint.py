"""Parameters of the released implementation, read into brt and replayed."""

import functools
import itertools
import json
import re
from pathlib import Path

import jax
import numpy as np
import pytest
from architectures import SIZES, VOCABULARY, WINDOW, random_model
from flax import nnx
from paper_numpy import Settings, init_caches, run_segment
from paths import GOLDEN
from ragged import ragged_segments
from tiny_models import parameters

from brt.models.checkpoints.meliad import UnsupportedCheckpoint, from_brt_path, load, load_recording

RECORDINGS = sorted(GOLDEN.glob("meliad_*.npz"))
ABSENT = f"no recordings under {GOLDEN}"

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


# Out and back


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
    model = random_model("slide", **MELIAD | MEMORY | cell)
    model.begin_D[...] = model.begin_D[...] * 0
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


# What does not fit is refused by name


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


# Recordings


CELL = dict(gate="lstm", arrangement="single", recurrent_layers=(1,))


@functools.cache
def recording():
    """What meliad would have recorded of a model, written by the transcription."""
    model = meliad_model(**CELL)
    settings = Settings(
        **{key: SIZES[key] for key in ("num_heads", "head_size", "window")},
        **CELL,
        gate_form="meliad",
        logits_divisor="width",
    )
    wide = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), parameters(model))
    corpus = ragged_segments(WINDOW, 8, VOCABULARY, rows=2, seed=6)
    tokens, starts = np.maximum(corpus.tokens[:4], 0), corpus.starts[:4]
    caches, logits, saved = init_caches(wide, settings, 2), [], {}
    for step, (tokens_BT, starts_B) in enumerate(zip(tokens, starts, strict=True)):
        logits_BTV, caches = run_segment(wide, settings, tokens_BT, starts_B, caches)
        logits.append(logits_BTV)
        for prefix in ["state_seg0"] * (step == 0) + ["state"] * (step == 3):
            for index, cache in enumerate(caches):
                for key, array in cache.items():
                    name = "recurrent_state" if key == "states" else f"previous_{key}"
                    saved[f"{prefix}/transformer{index}/{name}_test"] = array
    bindings = dict(
        NUM_LAYERS=3,
        NUM_HEADS=2,
        HEAD_DIM=4,
        EMBED_DIM=12,
        MLP_DIM=10,
        NUM_EMBEDDINGS=VOCABULARY,
        WINDOW_LENGTH=WINDOW,
    )
    return {
        **{f"params/{path}": array for path, array in exported(model).items()},
        **saved,
        "tokens": tokens,
        "start_of_sequence": starts,
        "logits": np.stack(logits),
        "config_json": config_json(bindings),
    }


def config_json(bindings, equals="="):
    text = json.dumps({"gin_bindings": [f"{k}{equals}{v}" for k, v in bindings.items()]})
    return np.array(text)


def bindings_of(recording):
    config = json.loads(str(recording["config_json"]))
    return dict(binding.split("=") for binding in config["gin_bindings"])


def test_a_recordings_settings_follow_from_window_and_parameters():
    model = load_recording(recording())
    assert nnx.split(model)[0] == nnx.split(meliad_model(**CELL))[0]


@pytest.mark.parametrize("equals", ["=", " = "])
@pytest.mark.parametrize(
    ("macro", "value"),
    [("NUM_LAYERS", 4), ("NUM_HEADS", 4), ("NUM_EMBEDDINGS", 18)]
    + [(macro, 99) for macro in ("HEAD_DIM", "EMBED_DIM", "MLP_DIM")],
)
def test_a_recording_that_contradicts_itself_is_refused(macro, value, equals):
    bindings = bindings_of(recording()) | {macro: value}
    with pytest.raises(UnsupportedCheckpoint, match=f"{macro}={value}"):
        load_recording(recording() | {"config_json": config_json(bindings, equals)})


@pytest.mark.parametrize(
    "file",
    RECORDINGS or [pytest.param("none", marks=pytest.mark.skip(reason=ABSENT))],
    ids=lambda file: Path(file).stem,
)
def test_every_recording_is_reproduced(check, file):
    """Gradients, which take long to compile, of one segment of one model."""
    with np.load(file, allow_pickle=False) as archive:
        arrays = {key: archive[key] for key in archive if key != "grads_seg2_loss"}
    if "lstm" not in file.stem and "memorizing" not in file.stem:
        arrays.pop("grads_loss")
    assert check(arrays, name=file.stem) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "file",
    RECORDINGS or [pytest.param("none", marks=pytest.mark.skip(reason=ABSENT))],
    ids=lambda file: Path(file).stem,
)
def test_every_recording_is_reproduced_with_all_its_gradients(check, file):
    assert check(file) == 0


@pytest.mark.skipif(not RECORDINGS, reason=ABSENT)
def test_a_recording_with_one_logit_moved_by_a_thousandth_fails(check, capsys):
    with np.load(GOLDEN / "meliad_xl.npz", allow_pickle=False) as archive:
        arrays = {key: archive[key] for key in archive if not key.startswith("grads")}
    assert check(arrays) == 0
    arrays["logits"] = arrays["logits"].copy()
    arrays["logits"][-1, 1, -1, 3] += 1e-3
    assert check(arrays) == 1
    assert "FAIL" in capsys.readouterr().out


EXACT = GOLDEN / "meliad_memorizing_exact_topk.npz"


@pytest.mark.skipif(not EXACT.exists(), reason=ABSENT)
def test_a_recorded_memory_is_compared_as_its_file_is_named(check, capsys):
    with np.load(EXACT, allow_pickle=False) as archive:
        arrays = {key: archive[key] for key in archive if not key.startswith("grads")}
    assert check(arrays) == 1  # by buckets
    assert "memory" in capsys.readouterr().out
    keys = "database/transformer2/mem_layer_test/wrapped/key_db"
    arrays[keys] = arrays[keys] + 1e-3
    assert check(arrays, name="exact") == 1
    assert "memory 1.0e-03" in capsys.readouterr().out


def test_what_the_transcription_writes_is_reproduced(check):
    assert check(recording()) == 0
