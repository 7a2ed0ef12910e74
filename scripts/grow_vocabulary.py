"""Writes a run's model with the larger vocabulary of a config, for `brt.train --load_dir`.

    python scripts/grow_vocabulary.py RUN CONFIG OUTPUT

RUN is a folder of `brt.train`, CONFIG a gin file, OUTPUT the model folder to write. Ids keep their
parameters; those of new ids are drawn as in a new run of CONFIG.
"""

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax

from brt.experiment import Configuration
from brt.model_folder import GIN, load_run, write_model


def main() -> None:
    if len(sys.argv) != 4 or not Path(sys.argv[2]).is_file():
        sys.exit(__doc__)
    run, config, output = sys.argv[1:]
    _, params, step = load_run(run)
    experiment = Configuration([config]).experiment()
    larger = grown(params, experiment.init_params())
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(config, Path(folder) / GIN)
        write_model(experiment, larger, step, folder, output)
    print(f"Written to {output}: {run} at step {step:,}.")


def grown(params: Any, larger: Any) -> Any:
    """Returns `larger` with `params` at the beginning of every axis."""
    return jax.tree.map(
        lambda old, new: new.at[tuple(map(slice, old.shape))].set(old), params, larger
    )


if __name__ == "__main__":
    main()
