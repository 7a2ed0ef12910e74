"""Writes the model of a run as a folder in the format of the Hugging Face Hub.

python -m brt.export --workdir=runs/quickstart --output=models/quickstart

`python -m brt.generate --model=models/quickstart` reads it (`brt.model_folder`). Transformers opens
the folder of a run on a pretrained backbone: it has the backbone and a reader's head under their
Hub names, config.json, and the tokenizer's files. Only brt reads the memory's parameters,
brt_memory.safetensors, and the run's config, brt_memory.gin.
"""

import functools
import operator
from typing import Any

import ml_dtypes
import numpy as np
from absl import flags
from safetensors.numpy import save as to_bytes

from brt import command_line
from brt.model_folder import (
    BACKBONE_GIN,
    BACKBONE_WEIGHTS,
    load_run,
    own_modules,
    run_config,
    write_model,
)
from brt.models.model import Model
from brt.pretrained.folder import write_folder
from brt.storage.paths import as_path
from brt.training.checkpoints.parameters import named_arrays

FLAGS = flags.FLAGS
command_line.define_step()
flags.DEFINE_enum(
    "dtype",
    "float32",
    ["float32", "bfloat16", "float16"],
    "Of the parameters; a memory beside a backbone stays float32.",
)
if "output" not in FLAGS:  # brt.report has the flag, too
    flags.DEFINE_string(
        "output", None, "The folder to write; it must not exist, or be empty.", allow_override=True
    )

FORMAT = "brt memory beside a body 1"


def main() -> None:
    if not FLAGS.workdir:
        raise ValueError("--workdir is missing: name the run folder whose model is to be written.")
    if not FLAGS["output"].present or not FLAGS.output:
        raise ValueError("--output is missing: name the folder to write.")
    settings = as_path(run_config(FLAGS.workdir)).read_text(encoding="utf-8")
    experiment, params, step = load_run(
        FLAGS.workdir, FLAGS.gin_bindings, FLAGS.allow_imports, FLAGS.step
    )
    workdir, output, dtype = FLAGS.workdir, FLAGS.output, FLAGS.dtype
    if backbone_of(experiment.model)[0] is not None:
        tensors, beside = export(experiment.model, params, output, settings, dtype)
    else:
        tensors, beside = write_model(experiment, params, step, workdir, output, dtype), 0
    print(f"Written to {FLAGS.output}: {tensors} tensors of {FLAGS.workdir} at step {step:,}.")
    if beside:
        print(f"The parameters of its memory, {beside} tensors, are in {BACKBONE_WEIGHTS}.")
    if modules := ", ".join(own_modules(settings)):
        print(
            f"Its config imports {modules}, which is not in the folder: pass the code on with it."
        )


def export(
    model: Model, params: Any, output: str, settings: str = "", dtype: str = "float32"
) -> tuple[int, int]:
    """Writes a model's pretrained backbone as a folder, with its other parameters in a file.

    Args:
        model: a pretrained backbone, a reader, or a model around one.
        output: the folder, which must not exist yet or be empty.
        settings: a gin config that builds the model.
        dtype: of the backbone; other parameters stay float32.

    Returns:
        The numbers of tensors of the backbone with its head, and of other tensors.
    """
    written, path = backbone_of(model)
    config, names = written.config(), written.names()
    tensors = names.write(functools.reduce(operator.getitem, path, params))
    if dtype != "float32":
        tensors = {
            name: array.astype(ml_dtypes.finfo(dtype).dtype) for name, array in tensors.items()
        }
        config["torch_dtype" if "torch_dtype" in config else "dtype"] = dtype
    copied_from = written.folder.path if written.folder else None
    further = {BACKBONE_GIN: settings.encode()}
    on_disk = {".".join([*path, name]) for tensor in names.tensors for name in tensor.parameters}
    others = {name: array for name, array in named_arrays(params).items() if name not in on_disk}
    beside = {name: np.ascontiguousarray(array) for name, array in others.items()}
    if beside:
        further[BACKBONE_WEIGHTS] = to_bytes(beside, {"format": FORMAT})
    write_folder(output, config, tensors, copied_from, further)
    return len(tensors), len(beside)


def backbone_of(model: Any, path: tuple[str, ...] = ()) -> tuple[Any, tuple[str, ...]]:
    """Returns a model's part whose parameters have names on disk, and the attributes that lead to
    it: a pretrained backbone, or a reader with its head; None for a model without one.
    """
    if model is None or hasattr(model, "names"):
        return model, path
    return backbone_of(getattr(model, "body", None), (*path, "body"))


if __name__ == "__main__":
    command_line.run(main)
