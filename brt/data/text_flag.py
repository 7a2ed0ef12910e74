"""--text: a corpus from the path of a text."""

import os
import re

from absl import flags

from brt.data.sources.rows import JsonLines, Parquet, SavedDataset
from brt.data.vocabularies.base import expanded
from brt.storage.paths import as_path

FLAGS = flags.FLAGS
CONFIG = "configs/corpora/own_text.gin"


def define_text() -> None:
    if "text" not in FLAGS:
        flags.DEFINE_string(
            "text",
            None,
            "Your own text: a file or folder of plain text, JSON lines (.gz, .zst), Parquet, or a "
            "data set that `datasets` saved. Read as bytes unless Corpus.vocabulary is bound.",
        )


def text_name(path: str) -> str:
    name = os.path.basename(path.replace("{split}", "").rstrip("/*"))
    return re.sub(r"[^\w-]+", "_", name) or "text"


def text_bindings(path: str, trains: bool = True) -> list[str]:
    """Returns the bindings of a text, after the gin file `CONFIG`.

    trains: whether the text may decide the stream; an evaluation has that of its run.
    """
    bindings = [
        "Trainer.corpus = @Corpus()",
        "Corpus.source = @Text()",
        f"Text.path = {path!r}",
        f'Corpus.store = "stores/{text_name(path)}"',
    ]
    is_rows = path.endswith(JsonLines.suffixes + Parquet.suffixes + SavedDataset.suffixes)
    if trains and not is_rows and as_path(expanded(path)).is_file():
        bindings.append('Trainer.stream = "contiguous"')  # one document for all batch elements
    return bindings


def expand_text(trains: bool = True) -> None:
    """Puts the gin file and bindings of --text before those of the command."""
    path = FLAGS["text"].value if "text" in FLAGS else None
    if path:
        short = {"gin_file": [CONFIG], "gin_bindings": text_bindings(path, trains)}
        for name, first in short.items():
            FLAGS[name].value = first + list(FLAGS[name].value or ())
