"""A pretrained encoder over the segments of labelled documents, with memories between them.

Source: RMT, section 4 and the published wrapper; Adding Recurrence to Pretrained Transformers,
section 5.4.
"""

import dataclasses
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, Self, cast

import jax
import jax.numpy as jnp
import optax
from absl import logging
from flax import nnx

from brt.checks import Count, CountFrom0, CountFrom2, OneOf, configurable
from brt.models.layers.initializers import normal, parameter
from brt.models.layers.losses import token_losses
from brt.models.memory_layout import MemoryLayout
from brt.models.memory_tokens.token_vectors import TokenVectors
from brt.models.model import Metrics
from brt.models.ops import at_least_float32
from brt.models.reader import Reader
from brt.pretrained.encoders.bert import BERT
from brt.pretrained.encoders.encoder import Encoder
from brt.pretrained.encoders.heads import ClassesHead, SpansHead
from brt.pretrained.encoders.t5 import T5
from brt.pretrained.folder import HubFolder
from brt.pretrained.memories.backbone_memory import BackboneMemory
from brt.pretrained.memories.window_memory import Positions, WindowMemory, WithMemories
from brt.pretrained.names import Names, prefixed
from brt.pretrained.settings import HubConfig
from brt.token_ids import PADDING

LOWEST = -1e30
PROBLEMS = {"classes": "single_label_classification", "labels": "multi_label_classification"}
"""`problem_type` of config.json, by targets."""
HEADS = {
    "classes": "ForSequenceClassification",
    "labels": "ForSequenceClassification",
    "spans": "ForQuestionAnswering",
    "words": "ForConditionalGeneration",
}
"""Suffixes of transformers' class names, by targets."""


class HighestCache(NamedTuple):
    """The maximum of the outputs of all segments' first positions, (B, D). Empty: `LOWEST`.

    Clearing keeps it, as no segment reads it.
    """

    first_BD: jax.Array

    @property
    def carries_state(self) -> bool:
        return False


class Embedded(NamedTuple):
    """A segment's embeddings, and which positions have a token."""

    x_BTD: jax.Array
    real_BT: jax.Array


class Outputs(NamedTuple):
    """The outputs of a segment.

    x_BTD: without memory positions, unless the model writes words. real_BT: positions of tokens or
    memory. first_BD: of `HighestCache`.
    """

    x_BTD: jax.Array
    real_BT: jax.Array
    first_BD: jax.Array


@configurable(denylist=["rngs"])
class PretrainedReader(WithMemories, Reader[Embedded, Outputs]):
    """An encoder with a head, over the segments of a labelled document.

    Args:
        body: builds the `Encoder`; its sizes are bound by its name, as in `BERT.width`.
        targets: as `LabelledDocuments.targets`; "words" with `T5`, else "classes", "labels"
            (several of the classes, or none) or "spans".
        num_memory: m, memory vectors, 0 for none, in addition to Trainer.segment_length positions.
        memories: build further memories between segments, such as `@FinalLayerMemory`.
    """

    num_words: int

    def __init__(
        self,
        rngs: nnx.Rngs,
        body: Callable[..., Encoder] = BERT,
        targets: Annotated[str, OneOf(tuple(HEADS))] = "classes",
        classes: CountFrom2 = 2,
        words: Count = 16,
        num_memory: CountFrom0 = 0,
        memories: tuple[Callable[..., WindowMemory], ...] = (),
    ):
        self.wrap(body(rngs))
        family = type(self.body).__name__
        if not isinstance(self.body, Encoder):
            raise ValueError(
                f"PretrainedReader.body must build an encoder, such as @BERT, and {family} is none."
            )
        if isinstance(self.body, T5) != (targets == "words"):
            raise ValueError(
                f'PretrainedReader.targets = "{targets}" does not go with {family}: @T5 answers '
                'with "words", and the other bodies with "classes", "labels" or "spans".'
            )
        self.targets = targets
        self.num_words = words
        self.num_classes = classes if targets in PROBLEMS else None
        self.num_memory = num_memory
        if targets in PROBLEMS:
            self.head: ClassesHead | SpansHead | None = ClassesHead(rngs, self.body, classes)
        else:
            self.head = SpansHead(rngs, self.body) if targets == "spans" else None
        if num_memory:
            self.memory_SD = parameter(
                *(rngs, normal(self.body.std), num_memory, self.body.width),
                purpose="recurrence",
                multiplied=False,
            )
        if memories and not self.body.takes_extras:
            raise ValueError(
                f"PretrainedReader.memories put vectors without a position into a layer, and "
                f"{family} knows positions by their distance alone: bind "
                "PretrainedReader.num_memory instead."
            )
        self.build_memories(rngs, memories)
        for memory in self.memories:
            if isinstance(memory, BackboneMemory) and not memory.takes_padding:
                raise ValueError(
                    f"PretrainedReader.memories has {type(memory.memory).__name__}, which changes "
                    "with whole blocks and would keep the padding of a segment: bind a "
                    "BackboneMemory of a TokenMemory, or @FinalLayerMemory."
                )
        self.segment_length = 1
        if self.body.folder:
            self._check_head(self.body.folder)
            self.names().check(self.body.folder, nnx.to_pure_dict(nnx.state(self, nnx.Param)))

    def _check_head(self, folder: HubFolder) -> None:
        known = self.body.classes_names
        if self.num_classes is None or known is None:
            return
        if (head := folder.tensors.get(f"{known.output}.weight")) is None:
            return
        if head.shape[:1] != (self.num_classes,):
            raise ValueError(
                f"{folder.file(head.file)}: {known.output}.weight is a head for {head.shape[0]} "
                f"classes, and PretrainedReader.classes = {self.num_classes}: bind it to as many, "
                "or take the head out of the folder."
            )
        HubConfig(folder).only("problem_type", PROBLEMS[self.targets])

    @property
    def layout(self) -> MemoryLayout:
        return MemoryLayout(
            self.num_memory, self.segment_length, False, after=self.body.memory_after
        )

    def for_segments(self, length: int) -> Self:
        room = self.body.num_positions
        if room is not None and length + self.num_memory > room:
            raise ValueError(
                f"Segments of {length} positions and PretrainedReader.num_memory = "
                f"{self.num_memory} are longer than the {room} positions of "
                f"{type(self.body).__name__}: bind Trainer.segment_length = "
                f"{max(room - self.num_memory, 0)} or less."
            )
        if self.targets == "labels" and length < (self.num_classes or 0):
            raise ValueError(
                f"PretrainedReader.classes = {self.num_classes} labels are asked for at a position "
                f"each, and segments have {length}: bind Trainer.segment_length = "
                f"{self.num_classes} or more."
            )
        model = nnx.merge(*nnx.split(self))
        model.segment_length = length
        return model

    def init_caches(self, rows: int) -> tuple:
        highest_dtype = jnp.promote_types(self.dtype, jnp.float32)
        highest = HighestCache(jnp.full((rows, self.body.width), LOWEST, highest_dtype))
        tokens = (self.memory.init_cache(rows, self.dtype),) if self.num_memory else ()
        return (highest, *tokens, *self.init_memories(rows))

    @property
    def memory(self) -> TokenVectors:
        return TokenVectors(self.memory_SD)

    def embed(self, tokens_BT: jax.Array) -> Embedded:
        return Embedded(self.body.embed(tokens_BT), tokens_BT != PADDING)

    def stack(
        self, x_BTD: Embedded, caches: tuple, key: jax.Array | None = None
    ) -> tuple[Outputs, tuple, dict[str, jax.Array]]:
        x, real_BX = x_BTD
        highest, *others = caches
        after: list[Any] = []
        S = self.num_memory
        if S:
            tokens = others.pop(0)
            x = self.layout.surround(x, self.memory.read(tokens, x.dtype).x_BMD)
            real_BX = self.layout.surround(real_BX, jnp.ones((len(real_BX), S), bool))
        reading = self.body.read(x, real_BX, self.reads(others, real_BX), key)
        y_BTD = y_BXD = reading.outputs[-1]
        metrics: Metrics = {}
        if S:
            y_BTD, memory_BSD = self.layout.divide(y_BXD)
            tokens, metrics = self.memory.update(tokens, memory_BSD)
            after.append(tokens)
        summaries = self.summaries(reading, Positions(real_BX, jnp.zeros_like(real_BX)))
        others, memory_metrics = self.updated(
            others, summaries, reading.keys, self.taken(reading), reading.kept
        )
        first_BD = jnp.maximum(highest.first_BD, at_least_float32(y_BTD[:, 0]))
        highest = HighestCache(first_BD.astype(highest.first_BD.dtype))
        first_BD = first_BD.astype(y_BTD.dtype)
        if self.targets == "words":  # the decoder attends to the memory too
            outputs = Outputs(y_BXD, real_BX, first_BD)
        else:
            outputs = Outputs(y_BTD, x_BTD.real_BT, first_BD)
        return outputs, (highest, *after, *others), metrics | memory_metrics

    # Answers.

    def logits(self, x_BTD: Outputs) -> jax.Array:
        """Returns the scores of Q targets, (B, Q, N), as for `token_losses`.

        words: of the first word. labels: Q classes, N = 2, whether each is a label.
        """
        if isinstance(self.body, T5):
            start_B1 = jnp.full((len(x_BTD.x_BTD), 1), self.body.settings.start_id)
            return self._word_logits(start_B1, x_BTD)
        if isinstance(self.head, ClassesHead):
            scores_BN = self.head(x_BTD.x_BTD[:, 0])
            if self.targets == "labels":
                return jnp.stack([jnp.zeros_like(scores_BN), scores_BN], axis=-1)
            return scores_BN[:, None]
        first_BT, last_BT, kinds_BN = self._span_scores(x_BTD)
        rest = first_BT.shape[1] - kinds_BN.shape[1]
        kinds_BT = jnp.pad(kinds_BN, [(0, 0), (0, rest)], constant_values=LOWEST)
        return jnp.stack([first_BT, last_BT, kinds_BT], axis=1)

    def _word_logits(self, words_BW, outputs):
        body = cast(T5, self.body)
        return body.word_logits(body.decode(words_BW, outputs.x_BTD, outputs.real_BT)[-1])

    def _span_scores(self, outputs):
        head = cast(SpansHead, self.head)
        first_BT, last_BT = head(outputs.x_BTD)
        hidden_BT = jnp.where(outputs.real_BT, 0.0, LOWEST)
        return first_BT + hidden_BT, last_BT + hidden_BT, head.kinds(outputs.first_BD)

    def token_losses(self, x_BTD: Outputs, targets_BT: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns -log p of the targets at the first positions, and whether they score highest.

        classes: one. labels: each class. spans: first and last position, and kind. words: each.
        """
        if isinstance(self.body, T5):
            words_BW = targets_BT[:, : self.num_words]
            logits_BQN = self._word_logits(self.body.shifted(words_BW), x_BTD)
        else:
            logits_BQN = self.logits(x_BTD)
        Q = logits_BQN.shape[1]
        nats_BQ, correct_BQ = token_losses(logits_BQN, targets_BT[:, :Q])
        rest = [(0, 0), (0, targets_BT.shape[1] - Q)]
        return jnp.pad(nats_BQ, rest), jnp.pad(correct_BQ, rest)

    def answers(self, x_BTD: Outputs) -> jax.Array:
        if isinstance(self.body, T5):
            return self.body.write(self.num_words, x_BTD.x_BTD, x_BTD.real_BT)
        if isinstance(self.head, ClassesHead):
            return self.head(x_BTD.x_BTD[:, 0])
        return jnp.concatenate(self._span_scores(x_BTD), axis=1)

    # Parameters and cost.

    def names(self) -> Names:
        return whole_names(self.body, self.head)

    @property
    def folder(self) -> HubFolder | None:
        return self.body.folder

    def config(self) -> dict[str, Any]:
        """Returns the config.json with the head; class names stay if their number does."""
        config = self.body.config()
        (family,) = self.body.model_types.values()
        config["architectures"] = [f"{family}{HEADS[self.targets]}"]
        if self.num_classes is not None:
            config["problem_type"] = PROBLEMS[self.targets]
            config.pop("num_labels", None)
            known = config.get("id2label")
            if not isinstance(known, dict) or len(known) != self.num_classes:
                labels = [f"LABEL_{number}" for number in range(self.num_classes)]
                config["id2label"] = {str(number): name for number, name in enumerate(labels)}
                config["label2id"] = {name: number for number, name in enumerate(labels)}
        return config

    def given_parameters(self) -> dict[str, Any]:
        if self.folder is None:
            return super().given_parameters()
        names = self.names()
        if missing := names.missing(self.folder):
            folder, name = self.folder.path, missing[0]
            logging.warning("%s has no %s: the head starts with random parameters.", folder, name)
        return names.read(self.folder)

    def gradient_metrics(self, grads: dict) -> Metrics:
        metrics = super().gradient_metrics(grads)
        if "memory_SD" in grads:
            metrics["memory_grad_norm"] = optax.tree.norm(grads["memory_SD"])
        return metrics

    def flops_per_token(self) -> float:
        positions = self.segment_length + self.num_memory
        layers = self.body.flops_of_layers(positions) * positions
        return (layers + self.flops_of_window(positions)) / self.segment_length


def whole_names(body: Encoder, head: Any) -> Names:
    """Returns the tensors of a tree with `body` and `head`; head: a head, its class, or None."""
    names = body.names()
    of_head = head.tensors(body) if head else ()
    tensors = prefixed(names.tensors, "body.") + prefixed(of_head, "head.")
    return dataclasses.replace(names, tensors=tuple(tensors))
