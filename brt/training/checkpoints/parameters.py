"""Parameters of a run folder: its newest checkpoint, read; and the tokens they belong to."""

import os
from collections.abc import Mapping
from typing import Any

import jax

from brt.data.mixture import MixedStore
from brt.data.stores.token_store import TokenStore
from brt.storage.paths import as_path
from brt.training.checkpoints.checkpoint import Checkpoints
from brt.training.optimization.weight_average import Averaged, evaluated_params
from brt.training.train_step import TrainState


def check_vocabulary(record: dict, store: TokenStore | MixedStore) -> None:
    """Refuses parameters that were trained on other token ids than a store's.

    Args:
        record: of a checkpoint, from `load_params`; those of older versions say nothing.
        store: a token store, or a mixture.

    Raises:
        ValueError: naming both tokenizers.
    """
    trained, read = record.get("vocabulary"), store.manifest["vocabulary"]
    if trained and trained["fingerprint"] != read["fingerprint"]:
        raise ValueError(
            f"The parameters were trained with the tokenizer {trained['name']} of size "
            f"{trained['size']}, and {store.folder} was made with {read['name']} of size "
            f"{read['size']}: bind Corpus.vocabulary and Corpus.store to those of the run."
        )


def load_params(folder: str, abstract: TrainState) -> tuple[TrainState, dict]:
    """Reads step and parameters of a run folder's newest valid checkpoint.

    Args:
        folder: the run folder.
        abstract: shapes and shardings to read into.

    Returns:
        The train state, in which only these two are set, and the checkpoint's record. The
        parameters are their average, if the run keeps one and `abstract` has its optimizer's state.

    Raises:
        FileNotFoundError: no checkpoint is there.
    """
    path = os.path.join(folder, "checkpoints")
    if not as_path(path).is_dir():
        raise FileNotFoundError(f"{folder} holds no checkpoints/ folder: has the run begun?")
    checkpoints = Checkpoints(path)
    averaged = isinstance(abstract.optimizer, Averaged)
    parts = ("step", "params", "optimizer") if averaged else ("step", "params")
    found = checkpoints.restore_latest(abstract, parts)
    checkpoints.close()
    if found is None:
        raise FileNotFoundError(f"{path} holds no complete checkpoint yet.")
    state, record = found
    return state._replace(params=evaluated_params(state), optimizer=None), record


def merged(drawn: Any, given: Mapping) -> Any:
    """Returns a nested dictionary of parameters with those of `given` put in.

    Raises:
        ValueError: a parameter that is not there, or of another shape; naming it.
    """
    flat, structure = jax.tree_util.tree_flatten_with_path(drawn)
    left = {_steps(path): array for path, array in jax.tree_util.tree_leaves_with_path(given)}
    leaves = []
    for path, old in flat:
        new = left.pop(_steps(path), None)
        if new is not None and new.shape != old.shape:
            name = ".".join(_steps(path))
            raise ValueError(f"The parameter {name} is {old.shape} and {new.shape} was given.")
        leaves.append(old if new is None else new)
    if left:
        raise ValueError(f"The model has no parameter {'.'.join(next(iter(left)))}.")
    return jax.tree.unflatten(structure, leaves)


def _steps(path):
    return tuple(str(step.key) for step in path)
