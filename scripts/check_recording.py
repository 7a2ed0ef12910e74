"""Replays recordings of google-research/meliad and prints how far brt is from them.

    python scripts/check_recording.py FILE.npz [FILE.npz ...]

Each file holds parameters, token segments, document starts, logits, caches and, in some,
gradients (see `brt/models/meliad_checkpoint.py` for what the parameters tell). An external
memory is searched as the released code does it, by buckets, unless the file's name has `exact` in
it: the settings in a file do not tell. Exit status:
0 if every error is within tolerance, 1 if one is not, or a file cannot be read.
"""

import argparse
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from brt.models import meliad_checkpoint
from brt.models.caches import RecurrentCache, reset_rows
from brt.models.memorizing_cache import MemorizingCache

OUTPUTS = 2e-5
"""Tolerance of logits and caches, absolute."""
GRADIENTS = 1e-4
"""Tolerance of gradients, relative to the largest entry of each tensor."""


def replay(recording, model):
    """Runs every segment; returns the stacked logits and the caches before each segment."""
    tokens_NBT, starts_NB = recording["tokens"], recording["start_of_sequence"]
    graph, params = nnx.split(model, nnx.Param)

    @jax.jit
    def segment(params, tokens_BT, starts_B, caches):
        model = nnx.merge(graph, params)
        caches = reset_rows(caches, model.init_caches(len(starts_B)), starts_B)
        return model(tokens_BT, caches)

    caches, logits, before = model.init_caches(tokens_NBT.shape[1]), [], []
    for tokens_BT, starts_B in zip(tokens_NBT, starts_NB, strict=True):
        before.append(caches)
        logits_BTV, caches = segment(params, tokens_BT, starts_B, caches)
        logits.append(logits_BTV)
    return np.stack(logits), [*before, caches]


def cache_error(recording, prefix, caches):
    """Largest difference of any cached array from the recorded collection `prefix`."""
    errors = []
    for i, cache in enumerate(caches):
        found = {}
        if isinstance(cache, RecurrentCache):
            found["recurrent_state"], cache = cache.states_BSD, cache.window
        if isinstance(cache, MemorizingCache):
            cache = cache.window
        found |= {"previous_keys": cache.keys_BWHK, "previous_values": cache.values_BWHK}
        for name, value in found.items():
            recorded = recording[f"{prefix}/transformer{i}/{name}_test"]
            errors.append(np.abs(recorded - np.asarray(value)).max())
    return np.max(errors)  # unlike max(), never passes over a NaN


def database_error(recording, caches):
    """Largest difference of any external memory from the recorded one; its places are exact."""
    errors = []
    for i, cache in enumerate(caches):
        if not isinstance(cache, MemorizingCache):
            continue
        prefix = f"database/transformer{i}/mem_layer_test/wrapped"
        rows, size, heads, _ = cache.keys_BMHK.shape
        for name, x_BMHK in (("key_db", cache.keys_BMHK), ("value_db", cache.values_BMHK)):
            found = np.moveaxis(np.asarray(x_BMHK), 2, 1).reshape(rows * heads, size, -1)
            errors.append(np.abs(recording[f"{prefix}/{name}"] - found).max())
        places = np.repeat(np.asarray(cache.written_B) % size, heads)
        errors.append(np.abs(recording[f"{prefix}/database_index"] % size - places).max())
    return np.max(errors)


def gradient_error(recording, model, caches, segment, prefix):
    """Largest relative difference of any parameter's gradient on one segment."""
    tokens_BT, starts_B = recording["tokens"][segment], recording["start_of_sequence"][segment]
    targets_BT = recording["targets"][segment]
    graph, params = nnx.split(model, nnx.Param)

    def loss(params):
        model = nnx.merge(graph, params)
        state = reset_rows(caches, model.init_caches(len(starts_B)), jnp.asarray(starts_B))
        logits_BTV, _ = model(jnp.asarray(tokens_BT), state)
        log_p_BTV = jax.nn.log_softmax(logits_BTV)
        return -jnp.mean(jnp.take_along_axis(log_p_BTV, targets_BT[..., None], axis=-1))

    value, grads = jax.jit(jax.value_and_grad(loss))(params)
    errors = [abs(float(value) - float(recording[f"{prefix}_loss"]))]
    for path, leaf in nnx.to_flat_state(grads):
        name = meliad_checkpoint.from_brt_path(path)
        if name == "begin":
            continue
        recorded, found = recording[f"{prefix}/{name}"], np.asarray(leaf[...])
        largest = np.abs(recorded).max()
        errors.append(np.abs(recorded - found).max() / (largest if largest > 0 else 1.0))
    return np.max(errors)


def check(file) -> bool:
    """Prints one line for the file; true if all errors are within tolerance."""
    with np.load(file, allow_pickle=False) as archive:
        recording = dict(archive)
    search = "exact" if "exact" in Path(file).stem else "bucketed"
    model = meliad_checkpoint.load_recording(recording, search)
    logits, caches = replay(recording, model)
    errors = {
        "logits": (np.abs(logits - recording["logits"]).max(), OUTPUTS),
        "first cache": (cache_error(recording, "state_seg0", caches[1]), OUTPUTS),
        "final cache": (cache_error(recording, "state", caches[-1]), OUTPUTS),
    }
    if any(key.startswith("database/") for key in recording):
        errors["memory"] = database_error(recording, caches[-1]), OUTPUTS
    for segment, prefix in ((1, "grads"), (2, "grads_seg2")):
        if f"{prefix}_loss" in recording:
            error = gradient_error(recording, model, caches[segment], segment, prefix)
            errors[f"gradients {segment}"] = error, GRADIENTS
    passed = all(error <= tolerance for error, tolerance in errors.values())
    parts = (f"{name} {error:.1e}" for name, (error, _) in errors.items())
    print(f"{'ok  ' if passed else 'FAIL'} {file}: {'  '.join(parts)}", flush=True)
    return passed


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="+", metavar="FILE.npz")
    jax.config.update("jax_default_matmul_precision", "highest")
    print(f"Tolerances: logits and caches {OUTPUTS:.0e}, gradients {GRADIENTS:.0e} relative.")
    passed = True
    for file in parser.parse_args(argv).files:
        try:
            passed &= check(file)
        except (OSError, ValueError, KeyError) as error:
            print(f"FAIL {file}: {error}")
            passed = False
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
