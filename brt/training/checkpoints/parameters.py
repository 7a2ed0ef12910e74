"""Reads parameters: of a run folder from one of its checkpoints, or of a model folder."""

import functools
import os
import re
from collections.abc import Mapping
from typing import Annotated, Any

import jax
import numpy as np

from brt.checks import Count, ManyFrom0, OneOf, Rule
from brt.data.vocabularies.named import KINDS
from brt.storage.json_files import Fields, read_json
from brt.storage.paths import as_path, on_disk
from brt.storage.tensor_files import read_tensor, tensor_infos
from brt.training.checkpoints.checkpoint import Checkpoints
from brt.training.checkpoints.policy import recorded_best
from brt.training.optimization.weight_average import AverageState, evaluated_params
from brt.training.records.run_folder import CHECKPOINTS, check_run_folder, read_metrics
from brt.training.train_step import TrainState

WEIGHTS, HEAD = "model.safetensors", "config.json"
"""Files of a model folder (`brt.model_folder`)."""

FILE_TYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
"""Types of parameters, in config.json and in the file of the parameters."""


IN_FOLDER = Rule(
    "the name of a file in the folder",
    lambda name: name != ".." and "/" not in name and "\0" not in name,
)
VOCABULARY = Fields(
    {
        "kind": Annotated[str, OneOf(tuple(KINDS))] | None,
        "file": Annotated[str, IN_FOLDER],
        "fingerprint": str,
    }
)
HEAD_FIELDS = Fields(
    {
        "model_type": Annotated[str, OneOf(("brt",))],
        "step": ManyFrom0,
        "torch_dtype": Annotated[str, OneOf(tuple(FILE_TYPES))],
        "vocab_size": Count,
        "vocabulary": VOCABULARY,
    }
)
"""Fields of config.json that brt reads."""
HEAD_BYTES = 2**20


def check_vocabulary(record: dict, vocabulary: Mapping, owner: Any) -> None:
    """Refuses parameters that were trained on other token ids than `owner` has.

    record: of a checkpoint; older versions lack the vocabulary. vocabulary: name, size and
    fingerprint.
    """
    trained = record.get("vocabulary")
    if trained and trained["fingerprint"] != vocabulary["fingerprint"]:
        raise ValueError(
            f"The parameters were trained with the tokenizer {trained['name']} of size "
            f"{trained['size']}, and {owner} has {vocabulary['name']} of size "
            f"{vocabulary['size']}: bind Corpus.vocabulary and Corpus.store to those of the run."
        )


def check_step(step: int | str | None) -> int | str | None:
    if step is None or step in ("best", "newest"):
        return step
    if not re.fullmatch(r"[0-9]{1,18}", text := str(step)):
        raise ValueError(f'A step is a whole number, "best" or "newest", and not {step!r}.')
    return int(text)


def load_params(
    folder: str, abstract: TrainState, step: int | str | None = None
) -> tuple[TrainState, dict]:
    """Reads step and parameters of one checkpoint of a run folder, or of a model folder.

    Args:
        abstract: shapes and shardings to read into.
        step: of a checkpoint; "best", by the run's evaluations; "newest", the newest valid one;
            None for the best one of a run that keeps it, else the newest.

    Returns:
        The train state with only these two, the parameters averaged if the run does and `abstract`
        has its optimizer's state; and the record, with the metric of the best checkpoint as
        "best_by".
    """
    step = check_step(step)
    check_run_folder(folder)
    if is_model_folder(folder):
        return _of_model_folder(folder, abstract, step)
    path = os.path.join(folder, CHECKPOINTS)
    if not as_path(path).is_dir():
        raise FileNotFoundError(f"{folder} holds no checkpoints/ folder: has the run begun?")
    checkpoints = Checkpoints(path)
    averaged = isinstance(abstract.optimizer, AverageState)
    parts = ("step", "params", "optimizer") if averaged else ("step", "params")
    by = None
    restored: tuple[TrainState, dict] | None
    try:
        if step in (None, "best") and (
            best := recorded_best(read_metrics(folder), steps := checkpoints.steps())
        ):
            step, by = best
        elif step == "best":
            raise FileNotFoundError(
                f"{folder} keeps no best checkpoint (CheckpointPolicy.keep_best), or has made no "
                f"evaluation yet. Steps that are there: {', '.join(map(str, steps)) or 'none'}."
            )
        if isinstance(step, int):
            restored = checkpoints.restore(step, abstract, parts)
        else:
            restored = checkpoints.restore_latest(abstract, parts)
    finally:
        checkpoints.close()
    if restored is None:
        raise FileNotFoundError(f"{path} holds no complete checkpoint yet.")
    state, record = restored
    record |= {"best_by": by} if by else {}
    return state._replace(params=evaluated_params(state), optimizer=None), record


def _of_model_folder(folder, abstract, step):
    head = read_head(folder)
    if isinstance(step, int) and step != head["step"]:
        raise ValueError(f"{folder} holds the model of step {head['step']} alone, not {step}.")
    with on_disk(os.path.join(folder, WEIGHTS)) as file:
        arrays = read_arrays(file, abstract.params, folder, head["torch_dtype"])
    params = from_named_arrays(abstract.params, arrays, folder)
    vocabulary = head["vocabulary"] | {"name": f"of {folder}", "size": head["vocab_size"]}
    state = abstract._replace(step=head["step"], params=params, optimizer=None)
    return state, {"vocabulary": vocabulary}


def is_model_folder(folder: str | os.PathLike) -> bool:
    path = as_path(folder)
    is_run = (path / CHECKPOINTS).exists()
    return not is_run and any((path / name).exists() for name in (HEAD, WEIGHTS))


def read_head(folder: str | os.PathLike) -> dict[str, Any]:
    """Returns the config.json of a model folder."""
    return read_json(as_path(folder) / HEAD, HEAD_FIELDS, "copy the folder again", HEAD_BYTES)


def read_arrays(
    path: str | os.PathLike, abstract: Any, folder: Any, dtype: str | None = None
) -> dict[str, np.ndarray]:
    """Returns the tensors of a file; all must be in the tree of parameters, with these shapes.

    dtype: of all tensors in the file, a key of `FILE_TYPES`; None for any.
    """
    shapes = {name: leaf.shape for name, leaf in named_arrays(abstract).items()}
    infos = tensor_infos(path)
    for name, info in infos.items():
        if shapes.get(name) != info.shape:
            raise ValueError(
                f"{folder} has a parameter {name!a} of shape {info.shape}, and its config "
                f"describes {shapes.get(name, 'none')}: copy the whole folder again."
            )
        if dtype and info.dtype != FILE_TYPES[dtype]:
            raise ValueError(
                f"{folder}/{HEAD}: torch_dtype = {dtype!r}, and {name} in {os.path.basename(path)} "
                f"is of type {info.dtype}: copy the whole folder again."
            )
    return {name: read_tensor(path, name, info) for name, info in infos.items()}


def named_arrays(params: Any) -> dict[str, Any]:
    return {_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params)}


def from_named_arrays(abstract: Any, arrays: Mapping[str, Any], folder: Any) -> Any:
    """Returns arrays as a tree of parameters with these dtypes and shardings."""

    def parameter(path, shape):
        name = _name(path)
        if name not in arrays or arrays[name].shape != shape.shape:
            raise ValueError(
                f"{folder} has no parameter {name} of shape {shape.shape}, which its config "
                "describes: copy the whole folder again."
            )
        return jax.device_put(np.asarray(arrays[name]).astype(shape.dtype), shape.sharding)

    return jax.tree_util.tree_map_with_path(parameter, abstract)


def merged(params: Any, replacements: Mapping) -> Any:
    shapes = {name: old.shape for name, old in named_arrays(params).items()}
    given = named_arrays(replacements)
    for name, new in given.items():
        if name not in shapes:
            raise ValueError(f"The model has no parameter {name}.")
        if new.shape != shapes[name]:
            raise ValueError(f"The parameter {name} is {shapes[name]} and {new.shape} was given.")
    return jax.tree_util.tree_map_with_path(lambda path, old: given.get(_name(path), old), params)


_name = functools.partial(jax.tree_util.keystr, simple=True, separator=".")
