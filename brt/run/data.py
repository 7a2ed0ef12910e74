"""The token stores of a training run."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import jax
from absl import logging
from jax.experimental import multihost_utils

from brt import command_line
from brt.data.extras import MissingExtra
from brt.data.stores.own_folders import check_claimable
from brt.experiment import Experiment
from brt.run.checks import check_documents, check_vocabulary

PREPARATION_ENDED = "prepared stores are kept, and the same command prepares the rest."


def splits_read(experiment: Experiment) -> list[str]:
    evaluated = [experiment.evaluation.split] if experiment.trainer.eval_every else []
    return ["train", *evaluated]


def check_data(experiment: Experiment) -> None:
    """Refuses stores that have other settings or that this machine's files cannot make.

    Only warns of missing extras.
    """
    try:
        check_vocabulary(experiment)
        check_documents(experiment, splits_read(experiment))
        for corpus in experiment.trainer.corpus.corpora:
            for split in splits_read(experiment):
                if corpus.exists(split):
                    corpus.open(split)
                elif isinstance(folder := corpus.path(split), Path):
                    check_claimable(folder)
    except MissingExtra as error:
        logging.warning("The stores cannot be prepared on this machine: %s", error)


def prepare_missing(experiment: Experiment) -> None:
    """Prepares missing token stores in another process, which may need TensorFlow."""
    corpus = experiment.trainer.corpus
    splits = splits_read(experiment)
    missing = [split for split in splits if not corpus.exists(split)]
    if jax.process_index() == 0:
        check_vocabulary(experiment)
        check_documents(experiment, splits)
        for part in corpus.corpora:
            for split in dict.fromkeys(splits):
                if part.exists(split):
                    part.warn_of_changes(split)
    if missing and jax.process_index() == 0:
        command = [sys.executable, "-m", "brt.prepare", *command_line.gin_flags()]
        with command_line.terminable(PREPARATION_ENDED):
            status = subprocess.run([*command, f"--splits={','.join(missing)}"], check=False)
        if status.returncode:
            raise ValueError("The token stores could not be prepared; the reason is above.")
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices("token stores")


def store_contents(experiment: Experiment) -> dict[str, str]:
    hashes = {}
    for split in splits_read(experiment):
        for number, corpus in enumerate(experiment.trainer.corpus.corpora):
            manifest = corpus.open(split).manifest
            content = json.dumps([manifest["hashes"], manifest["vocabulary"]], sort_keys=True)
            name = f"tokens of split {split}, corpus {number}"
            hashes[name] = hashlib.sha256(content.encode()).hexdigest()[:16]
    return hashes
