"""The folder that a backbone begins with."""

from collections.abc import Collection

from brt.checks import Name, configurable
from brt.pretrained.folder import CONFIG, HubFolder

READ_BY = {
    "gpt2": "GPT2",
    "llama": "Llama",
    "mistral": "Llama",
    "qwen2": "Llama",
    "gpt_neox": "GPTNeoX",
    "bert": "BERT",
    "roberta": "RoBERTa",
    "deberta-v2": "DeBERTa",
    "t5": "T5",
}
"""The backbone that reads folders of each `model_type`."""


@configurable
class Pretrained:
    """Names the folder that a backbone begins with.

    Args:
        folder: in the format of the Hugging Face Hub; None: random parameters.
        other_vocabulary: accept a corpus whose ids are not those of the folder's tokenizer.
    """

    def __init__(self, folder: Name | None = None, other_vocabulary: bool = False):
        self.folder = folder
        self.other_vocabulary = other_vocabulary


def open_folder(path: str | None, backbone: str, model_types: Collection[str]) -> HubFolder | None:
    path = Pretrained().folder if path is None else path
    if path is None:
        return None
    folder = HubFolder(path)
    model_type = folder.config.get("model_type")
    if not isinstance(model_type, str) or model_type not in model_types:
        known = READ_BY.get(str(model_type))
        raise ValueError(
            f"{folder.file(CONFIG)}: model_type = {model_type!r} is not read by {backbone}"
            + (f", but by @{known}." if known else f"; brt knows {', '.join(sorted(READ_BY))}.")
        )
    return folder
