"""Trained models: reads run folders; writes and reads folders in Hub format.

A folder in the format of the Hugging Face Hub:

    config.json          architecture, step, vocabulary
    config.gin           the run's config, from which brt builds the model
    model.safetensors    the parameters, by their paths joined with dots
    README.md            model card: data, tokens, figures, command, checksum
    ...                  the vocabulary's files

A folder of a pretrained backbone (`brt.export`) is read, too. No code of a folder is run.
"""

import hashlib
import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import jax
import ml_dtypes
import numpy as np
from jax.sharding import SingleDeviceSharding
from safetensors.numpy import save

import brt
from brt.bindings.read_bindings import bound_by_flags
from brt.checks import ManyFrom0, checked_arguments
from brt.data.corpus import Corpus
from brt.data.extras import extra_library
from brt.data.stores.layout import vocabulary_entry
from brt.data.vocabularies.named import KINDS
from brt.experiment import Configuration, Experiment
from brt.host.terminal import printable
from brt.pretrained.folder import write_folder
from brt.storage.json_files import Fields, read_json
from brt.storage.paths import AnyPath, absolute, as_path
from brt.storage.regular_files import check_links, read_text
from brt.storage.shipped import gin_folders, user_cache
from brt.training.checkpoints.parameters import (
    check_step,
    check_vocabulary,
    from_named_arrays,
    is_model_folder,
    load_params,
    named_arrays,
    read_arrays,
    read_head,
)
from brt.training.records.run_folder import check_run_folder

GIN, CARD = "config.gin", "README.md"
BACKBONE_GIN, BACKBONE_WEIGHTS = "brt_memory.gin", "brt_memory.safetensors"
HUB = "hf://"


def run_config(folder: str) -> str:
    path = os.path.join(folder, GIN)
    if not as_path(path).is_file():
        own = [root / folder for root in gin_folders() if (root / folder / GIN).is_file()]
        copy, advice = os.path.basename(os.path.normpath(folder)), ""
        if own:
            advice = (
                f" The model that comes with brt is {own[0]}, and results are written beside a "
                f"model: copy it (`cp -r {own[0]} {copy}`) and pass --workdir={copy}."
            )
        elif (as_path(folder) / BACKBONE_GIN).is_file():
            advice = (
                " It is a backbone that brt.export wrote: `python -m brt.generate --model="
                f"{folder} --score=FILE` evaluates it; brt.evaluate reads the run."
            )
        else:
            shipped = sorted(p for root in gin_folders() for p in root.glob(f"trained/*/{GIN}"))
            names = dict.fromkeys(f"trained/{path.parent.name}" for path in shipped)
            advice = (
                " Name a run of brt.train, a folder of brt.export, or one of brt's: "
                f"{', '.join(names)}."
            )
        raise FileNotFoundError(
            f"{folder} is not a run folder or a model folder: it has no {GIN}.{advice}"
        )
    check_run_folder(folder)
    return path


@checked_arguments
def load_run(
    folder: str | os.PathLike,
    bindings: Sequence[str] = (),
    allow_imports: Sequence[str] = (),
    step: int | str | None = None,
) -> tuple[Experiment, Any, int]:
    """Builds the experiment of a folder and reads its parameters.

    Args:
        folder: of a run or of `brt.export`, also below `configs/`, or `hf://OWNER/NAME`.
        step: of a run's checkpoint; "best", "newest", or None for the best one of a run that keeps
            it (`CheckpointPolicy.keep_best`), else the newest valid one.

    Returns:
        (experiment, params, step): params a nested dictionary on the default device; step 0 of a
        pretrained backbone.
    """
    root, step = located(os.fspath(folder)), check_step(step)
    if (root / BACKBONE_GIN).is_file():
        if isinstance(step, int):
            raise ValueError(f"{root} is an exported backbone, without steps: name no step.")
        return _load_backbone(root, bindings, allow_imports)
    folder = str(root)
    files = [run_config(folder)]
    experiment = Configuration(files, bindings, allow_imports=allow_imports).experiment()
    use_vocabulary(experiment, folder)
    device = SingleDeviceSharding(jax.devices()[0])
    placed = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device),
        experiment.abstract_state(),
    )
    state, record = load_params(folder, placed, step)
    check_vocabulary(record, vocabulary_entry(experiment.trainer.corpus.vocabulary), "this corpus")
    return experiment, state.params, int(state.step)


def located(folder: str) -> AnyPath:
    """Returns a folder's path, below `configs/` if missing; downloads a folder of the Hub."""
    if folder.startswith(HUB):
        hub, name = extra_library("huggingface_hub", folder, "hub"), folder.removeprefix(HUB)
        # Files, as the Hub's own cache has links that lead out of the folder.
        return Path(hub.snapshot_download(name, local_dir=user_cache("hub") / name))
    path = as_path(absolute(os.path.expanduser(folder)))
    shipped = (root / folder for root in gin_folders())
    return path if path.is_dir() else next((p for p in shipped if p.is_dir()), path)


def _load_backbone(root, bindings, allow_imports):
    check_links(root)
    files, lines = [str(root / BACKBONE_GIN)], [f"Pretrained.folder = {str(root)!r}", *bindings]
    experiment = Configuration(files, lines, allow_imports=allow_imports).experiment()
    abstract = experiment.abstract_params
    arrays = named_arrays(experiment.model.given_parameters())
    if (weights := root / BACKBONE_WEIGHTS).exists():  # a model without a memory has no such file
        arrays |= read_arrays(weights, abstract, root)
    return experiment, from_named_arrays(abstract, arrays, root), 0


def write_model(
    experiment: Experiment,
    params: Any,
    step: int,
    workdir: str,
    output: str,
    dtype: str = "float32",
) -> int:
    """Writes the model of a run as a folder; returns the number of its tensors.

    Args:
        workdir: the run folder, for its config and the model card.
        output: the folder, which must not exist yet or be empty.
        dtype: of the written parameters.
    """
    of_type = ml_dtypes.finfo(dtype).dtype
    tensors = {
        name: np.asarray(array).astype(of_type) for name, array in named_arrays(params).items()
    }
    vocabulary = experiment.trainer.corpus.vocabulary
    kinds = (kind for kind, cls in KINDS.items() if isinstance(vocabulary, cast(type, cls)))
    kind = next(kinds, None)
    path = getattr(vocabulary, "path", "") if kind else ""
    file = os.path.basename(path) if as_path(path).is_file() else ""
    config = {
        "model_type": "brt",
        "architectures": [type(experiment.model).__name__],
        "brt_version": brt.__version__,
        "step": step,
        "torch_dtype": dtype,
        "vocab_size": vocabulary.size,
        "vocabulary": {"kind": kind, "file": file, "fingerprint": vocabulary.fingerprint},
    }
    settings = (as_path(workdir) / GIN).read_text(encoding="utf-8")
    if "vocabulary_size" in experiment.bindings:  # it may come from a file elsewhere
        settings += f"\nvocabulary_size = {experiment.model.vocabulary_size}\n"
    further = {GIN: settings.encode()}
    if file:
        further[file] = as_path(path).read_bytes()
    further[CARD] = model_card(experiment, step, workdir, tensors).encode()
    copied_from = path if os.path.isdir(path) else None
    write_folder(output, config, tensors, copied_from, further)
    return len(tensors)


def model_card(experiment: Experiment, step: int, workdir: str, tensors: dict) -> str:
    """Returns the README.md of a model: data, training and evaluations."""
    trainer, run = experiment.trainer, as_path(workdir)
    data = []
    corpora: list[Corpus] = trainer.corpus.corpora
    for corpus in corpora:
        if corpus.exists("train"):
            manifest = corpus.open("train").manifest
            counts = f"{manifest['documents']:,} documents, {manifest['tokens']:,} tokens"
            data.append(f"{corpus.path('train').name} of {corpus.store}: {counts}")
    rows = [
        ("architecture", type(experiment.model).__name__),
        ("parameters", f"{sum(array.size for array in tensors.values()):,}"),
        ("vocabulary", trainer.corpus.vocabulary.name),
        ("data", "; ".join(data) or "not on the machine that wrote this"),
        ("trained", f"{step:,} steps, {step * trainer.tokens_per_step:,} tokens"),
    ]
    for file in sorted(run.glob("evaluation_*.json")) if isinstance(run, Path) else ():
        figures = read_json(file, EVALUATION, "remove the file, or evaluate the run again")
        names = [name for name in FIGURES if name in figures]
        forms = {name: ".4f" if figures[name] < 1e6 else ".2e" for name in names}
        text = ", ".join(f"{name} {figures[name]:{form}}" for name, form in forms.items())
        # Another text and a named step are in the file's name alone.
        name = file.stem.removeprefix("evaluation_")
        rows.append((f"evaluation, {name}", f"step {figures['step']:,}: {text}"))
    command = run / "command.txt"
    if command.is_file():
        line = read_text(command)
        try:
            _, *words = shlex.split(line)  # the interpreter's path first
        except ValueError as error:
            raise ValueError(f"{command} holds no command ({error}): remove it.") from None
        rows.append(("command", f"`python {shlex.join(words)}`"))
    rows.append(("sha256 of the tensors", hashlib.sha256(save(tensors)).hexdigest()))
    is_text = trainer.corpus.vocabulary.is_text
    prompt, text, note = '--prompt="Once upon a time"' if is_text else "--prompt=...", "", ""
    if is_text and all(corpus.source.vocabulary is None for corpus in corpora):
        text = " --text=YOUR_TEXT"
        note = (
            "\nWithout `--text` an evaluation reads the data of the run, which is not in this "
            f"folder: `{'`, `'.join(str(corpus.store) for corpus in corpora)}`.\n"
        )
    imports = ""
    if own_code := own_modules((run / GIN).read_text(encoding="utf-8")):
        imports = f" --allow_imports={','.join(own_code)}"
        note += (
            f"\nThe model needs Python code that is not in this folder: `{'`, `'.join(own_code)}`. "
            "Put it into the working directory or on `PYTHONPATH`.\n"
        )
    table = "\n".join(
        f"| {name} | {printable(value).replace('|', '&#124;')} |" for name, value in rows
    )
    return CARD_TEXT.format(table=table, prompt=prompt, text=text, imports=imports, note=note)


FIGURES = ("bits_per_byte", "bits_per_token", "word_level_perplexity", "recall_accuracy")
EVALUATION = Fields({"step": ManyFrom0}, dict.fromkeys(FIGURES, float))
CARD_TEXT = """---
library_name: brt
tags: [brt, jax, recurrent-memory, text-generation]
---

# A model of brt

| | |
|---|---|
{table}

```
python -m brt.generate --model=THIS_FOLDER {prompt}{imports}
python -m brt.evaluate --workdir=THIS_FOLDER{text}{imports}
```
{note}"""


def use_vocabulary(experiment: Experiment, folder: str) -> Experiment:
    """Gives an experiment the vocabulary of a model folder; no-op for a run folder.

    The folder's config.gin names the vocabulary's files on the machine that wrote it. Bindings of
    flags stay.
    """
    if not is_model_folder(folder):
        return experiment
    entry = read_head(folder)["vocabulary"]
    if kind := entry.get("kind"):
        vocabulary = KINDS[kind](os.path.join(folder, entry["file"]))
        if "Corpus.vocabulary" in bound_by_flags:
            vocabulary = experiment.trainer.corpus.vocabulary
        if vocabulary.fingerprint != entry["fingerprint"]:
            raise ValueError(
                f"{vocabulary.name} is not the vocabulary that the model in {folder} was trained "
                "with: copy the folder again, or leave out the binding of Corpus.vocabulary."
            )
        for corpus in experiment.trainer.corpus.corpora:
            corpus.vocabulary = vocabulary
    return experiment


def own_modules(settings: str) -> list[str]:
    """Returns the modules and packages outside brt that a run's config imports."""
    found = re.findall(r"^(?:import|from) +([\w.]+)", settings, re.M)
    return [name for name in found if name.partition(".")[0] != "brt"]
