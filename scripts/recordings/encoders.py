"""Replays recordings of pretrained encoders with a head; see `check_recording.py`.

Compares hidden states, outputs of the head, the loss, and gradients by their names on disk, and in
float64 outputs of the head and the loss. Outputs are compared where `attention_mask` is 1. The
first position of a row that is padded on the left is padding: the output there of a head for
classes depends on the version of transformers. brt pads on the right.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.nn.initializers import zeros

from brt.models.layers.initializers import normal, parameter
from brt.models.layers.norms import LayerNorm
from brt.models.ops import at_least_float32
from brt.pretrained.activations import ACTIVATIONS
from brt.pretrained.backbone_layer import linear
from brt.pretrained.encoders.encoder import Encoder
from brt.pretrained.encoders.heads import ClassesHead, SpansHead
from brt.pretrained.folder import HubFolder
from brt.pretrained.names import Tensor, matrix_tensors, norm_tensors
from brt.pretrained.reader import whole_names
from recordings.pretrained_errors import (
    Found,
    body_of,
    bound,
    config_of,
    folder_of,
    mean_loss,
    split_with,
)

TASKS = ("sequence classification", "masked language model", "question answering")


class WordsNames(NamedTuple):
    """Names on disk of the parts of a head for words."""

    dense: str
    norm: str
    bias: str


WORDS = {
    "bert": WordsNames(
        "cls.predictions.transform.dense",
        "cls.predictions.transform.LayerNorm",
        "cls.predictions.bias",
    ),
    "roberta": WordsNames("lm_head.dense", "lm_head.layer_norm", "lm_head.bias"),
}


class WordsHead(nnx.Module):
    """Logits of words at every position: dense, activation, norm, embedding matrix."""

    def __init__(self, rngs: nnx.Rngs, body: Encoder):
        self.activation = body.settings.activation
        self.dense_DU = parameter(rngs, normal(body.std), body.width, body.width)
        self.dense_bias_U = parameter(rngs, zeros, body.width)
        self.norm = LayerNorm(rngs, body.width, epsilon=body.settings.epsilon)
        self.bias_V = parameter(rngs, zeros, body.vocabulary_size)

    def __call__(self, x_BTD: jax.Array, words_VD: nnx.Param) -> jax.Array:
        """Maps (B, T, D) to (B, T, V), at least float32."""
        u_BTU = ACTIVATIONS[self.activation](linear(x_BTD, self.dense_DU, self.dense_bias_U))
        u_BTU = self.norm(u_BTU)
        embedding_VD = words_VD[...].astype(u_BTU.dtype)
        return at_least_float32(jnp.einsum("btd,vd->btv", u_BTU, embedding_VD)) + self.bias_V[...]

    @staticmethod
    def tensors(body: Encoder) -> list[Tensor]:
        names = WORDS[body.settings.model_type]
        dense = matrix_tensors(names.dense, "dense_DU", "dense_bias_U")
        return [*dense, *norm_tensors(names.norm, "norm"), Tensor(names.bias, ("bias_V",))]


class Whole(nnx.Module):
    """A backbone and a head, as in a folder."""

    def __init__(self, folder: str, task: str):
        rngs = nnx.Rngs(0)
        self.body: Encoder = body_of(folder)(rngs)
        if "masked" in task:
            self.head: nnx.Module = WordsHead(rngs, self.body)
        elif "question" in task:
            self.head = SpansHead(rngs, self.body, kinds=0)
        else:
            self.head = ClassesHead(rngs, self.body, number_of_labels(self.body))

    @property
    def dtype(self) -> Any:
        return self.body.dtype

    @dtype.setter
    def dtype(self, dtype: Any) -> None:
        self.body.dtype = dtype


def number_of_labels(body: Encoder) -> int:
    folder = body.folder
    assert folder is not None and body.classes_names is not None
    return folder.tensors[f"{body.classes_names.output}.weight"].shape[0]


def outputs(model: Whole, recording: Mapping[str, Any]) -> tuple[jax.Array, dict, dict]:
    ids_BT = jnp.asarray(recording["input_ids"], jnp.int32)
    real_BT = jnp.asarray(recording["attention_mask"] == 1)
    types_BT = None
    if "token_type_ids" in recording:
        types_BT = jnp.asarray(recording["token_type_ids"], jnp.int32)
    x_BTD = model.body.embed(ids_BT)
    reading = model.body.read(x_BTD, real_BT, types_BT=types_BT)
    x_BTD = model.body.enter(x_BTD, real_BT, types_BT)
    states = {f"hidden_states/{i}": y for i, y in enumerate([x_BTD, *reading.outputs])}
    last_BTD = reading.outputs[-1]
    if isinstance(model.head, ClassesHead):
        logits_BN = model.head(last_BTD[:, 0])
        labels_B1 = recording["labels"][:, None]
        loss = mean_loss(logits_BN[:, None], labels_B1, np.ones(labels_B1.shape, bool))
        return loss, states, {"logits": logits_BN}
    if isinstance(model.head, WordsHead):
        logits_BTV = model.head(last_BTD, model.body.embedding_VD)
        loss = mean_loss(logits_BTV, recording["labels"], recording["labels"] != -100)
        return loss, states, {"logits": logits_BTV}
    found = dict(zip(("start_logits", "end_logits"), model.head(last_BTD), strict=True))
    losses = []
    for key, place in (("start_logits", "start_positions"), ("end_logits", "end_positions")):
        places_B = recording[place]
        inside_B1 = (places_B < ids_BT.shape[1])[:, None]
        targets_B1 = np.where(inside_B1, places_B[:, None], 0)
        losses.append(mean_loss(found[key][:, None], targets_B1, inside_B1))
    of_first, of_last = losses
    return (of_first + of_last) / 2, states, found


def errors(recording: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    config = config_of(recording)
    folder = folder_of(recording)
    found = Found(recording)
    model = Whole(folder, config["task"])
    names = whole_names(model.body, type(model.head))
    graph, params = split_with(model, names.read(HubFolder(folder)))
    at_BT = recording["attention_mask"] == 1

    of_classes = isinstance(model.head, ClassesHead)
    at = at_BT[:, 0] if of_classes else at_BT
    whole = not of_classes or at.all()

    def read(params, dtype):
        loss, states, given = outputs(bound(graph, params, dtype), recording)
        return loss, states | given | ({"loss": loss} if whole else {})

    spans = isinstance(model.head, SpansHead)
    keys = ("start_logits", "end_logits") if spans else ("logits",)
    compared_at = {"hidden_states": at_BT} | dict.fromkeys(keys, at)
    grads = found.compare(read, params, (*keys, "loss") if whole else keys, compared_at)
    if whole:
        found.gradient("grads/", names.write(grads))
    return found.errors
