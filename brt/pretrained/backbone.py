"""A pretrained backbone: a stack of layers over one window, without a memory."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from flax import nnx

from brt.data.vocabularies.base import Vocabulary
from brt.models.counts import matrix_size
from brt.models.description import ModelDescription
from brt.models.layers.dropout import independent_dropout, split_key
from brt.models.ops import keep_mask
from brt.models.sizes import Sizes
from brt.pretrained.backbone_layer import BackboneLayer, LayerKeys, Reads, Seen, drops
from brt.pretrained.names import Names
from brt.pretrained.settings import Settings, resolve_settings
from brt.pretrained.source import check_ids, open_folder


class Reading(NamedTuple):
    """The results of all layers; the last outputs, (B, T, D), are after the final norm.

    kept: the arrays of `Reads.read` for the caller.
    """

    outputs: tuple[jax.Array, ...]
    keys: tuple[LayerKeys, ...]
    kept: tuple[Any, ...] = ()


class PretrainedBackbone(nnx.Module):
    """The base of transformers whose parameters may come from a folder.

    Built as `backbone(rngs)`. Its parameters are the settings of its family, and `folder`, which
    overrides `Pretrained.folder`. model_types: `model_type` of folders, and their classes in
    transformers. num_positions: positions that a window may have; None: any number.
    """

    settings_type: ClassVar[type[Settings]]
    model_types: ClassVar[Mapping[str, str]]
    sizes: Sizes
    layers: nnx.List
    num_positions: int | None
    dtype: np.dtype

    def __init_subclass__(cls, **options: Any):
        super().__init_subclass__(**options)
        if "settings_type" not in vars(cls):
            return

        def __init__(self, rngs, **bound):
            PretrainedBackbone.__init__(self, rngs, **bound)

        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        settings = cls.settings_type.parameters()
        __init__.__signature__ = inspect.Signature([  # type: ignore[attr-defined]
            inspect.Parameter("self", kind),
            inspect.Parameter("rngs", kind),
            *settings,
            settings[0].replace(name="folder", default=None, annotation=str | None),
        ])  # fmt: skip
        cls.__init__ = __init__  # type: ignore[method-assign,assignment]

    def __init__(self, rngs: nnx.Rngs, folder: str | None = None, **bound: Any):
        name = type(self).__name__
        unknown = bound.keys() - {setting.name for setting in self.settings_type.parameters()}
        if unknown:
            raise TypeError(f"{name} has no parameter {', '.join(sorted(unknown))}.")
        self.folder = open_folder(folder, name, self.model_types)
        settings: Any = resolve_settings(name, self.settings_type, bound, self.folder)
        self.settings = settings
        self.vocabulary_size = settings.vocabulary_size
        self.width = settings.width
        self.sizes = settings.sizes()
        self.num_positions = getattr(settings, "num_positions", None)
        self.dropout = settings.dropout
        self.dtype = jnp.dtype(settings.activation_dtype)
        self.build(rngs)
        if self.folder:
            self.names().check(self.folder, nnx.to_pure_dict(nnx.state(self, nnx.Param)))

    def build(self, rngs: nnx.Rngs) -> None:
        raise NotImplementedError

    def names(self) -> Names:
        raise NotImplementedError

    divided_sizes = ModelDescription.divided_sizes

    def check_vocabulary(self, vocabulary: Vocabulary, binding: str) -> None:
        if self.folder:
            check_ids(self.folder.path, vocabulary, binding)

    def given_parameters(self) -> dict[str, Any]:
        if self.folder:
            return self.names().read(self.folder)
        logging.warning(
            "%s begins with random parameters: bind Pretrained.folder for pretrained ones.",
            type(self).__name__,
        )
        return {}

    def config(self) -> dict[str, Any]:
        config = dict(self.folder.config) if self.folder else self.settings.config()
        return config | dict.fromkeys(config.keys() & {"dtype", "torch_dtype"}, "float32")

    # The stack of layers.

    def shared(self, inputs_BTD: jax.Array, real_BT: jax.Array | None) -> Any:
        """Returns inputs for all layers, computed once per window."""
        return None

    def between(self, number: int, x_BTD: jax.Array, shared: Any) -> jax.Array:
        return x_BTD

    def leave(self, x_BTD: jax.Array) -> jax.Array:
        return x_BTD

    def run(
        self,
        x_BTD: jax.Array,
        positions_BT: jax.Array,
        seen: Callable[[int, LayerKeys], Seen],
        reads: Reads,
        key: jax.Array | None,
        real_BT: jax.Array | None = None,
    ) -> Reading:
        keys = split_key(key, self.dropout, len(self.layers) + 1)
        with jax.named_scope("embedding"):
            x_BTD = independent_dropout(x_BTD, self.dropout, keys[0])
            shared = self.shared(x_BTD, real_BT)
        layers = []
        for i, (layer, of_layer) in enumerate(zip(self.layers, keys[1:], strict=True)):
            run: Callable[..., Any] = functools.partial(
                self._layer, i, layer, seen=seen, reads=reads, shared=shared
            )
            run = jax.checkpoint(run) if self.settings.remat == "layer" else run
            with jax.named_scope(f"layer{i}"):
                x_BTD, *others = run(x_BTD, positions_BT, key=of_layer)
                x_BTD = self.between(i, x_BTD, shared)
            layers.append((x_BTD, *others))
        outputs, layer_keys, kept = zip(*layers)
        return Reading((*outputs[:-1], self.leave(x_BTD)), layer_keys, kept)

    def _layer(self, i, layer: BackboneLayer, x_BTD, positions_BT, seen, reads, shared, key):
        weights_key, outputs_key = (None, None) if key is None else jax.random.split(key)
        with jax.named_scope("attention"):
            heads = layer.heads(x_BTD)
            visible = seen(i, heads.keys).with_extra(reads.extra(i))
            blocks, J = visible.positions_BJ.shape
            q_BTHK = heads.queries_BTHK
            # A batch element's queries may form several blocks, each with its own keys.
            q_GTHK = q_BTHK.reshape(blocks, -1, *q_BTHK.shape[2:])
            positions_GT = positions_BT.reshape(q_GTHK.shape[:2])
            shape = layer.sizes.num_heads, q_GTHK.shape[1], J
            keep_HTJ = keep_mask(weights_key, self.dropout, shape, jnp.float32)
            attended = layer.attend(q_GTHK, positions_GT, visible, keep_HTJ, shared)
        with jax.named_scope("memory"):
            attended, added_BTD, kept = reads.read(i, heads, attended.reshape(q_BTHK.shape))
        y_BTD = layer.finish(x_BTD, attended, added_BTD, drops(outputs_key, self.dropout))
        return y_BTD, heads.keys, kept

    def flops_of_layers(self, keys_seen: float) -> float:
        A = self.sizes.attention_size
        return sum(2 * matrix_size(layer) + 4 * A * keys_seen for layer in self.layers)
