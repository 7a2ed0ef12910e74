"""Reads parameters of google-research/meliad into brt's models.

The parameter tree determines the model, except for the window and the settings of an external
memory. The loaded model uses the gate form "meliad" and logits over the root of D.
"""

import functools
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import nnx

from brt.models.block_recurrent.cell import RecurrentCell
from brt.models.block_recurrent.external_memory import ExternalMemory
from brt.models.block_recurrent.model import BlockRecurrentTransformer

LAYER = "transformer{}/"
TOKENS = "tbase/"
STATES = "recurrent_tbase/"
MIX = "external_memory_bias"


class UnsupportedCheckpoint(ValueError):
    """The checkpoint has a part without a counterpart in brt."""


def load(params: dict, window: int, **memory: int | str) -> BlockRecurrentTransformer:
    """Returns a float32 model with meliad's parameters; `begin_D`, which meliad lacks, is zero.

    Args:
        params: from paths joined with "/" (`transformer0/tbase/...`) to arrays.
        window: W in tokens (meliad's WINDOW_LENGTH).
        memory: `size`, `neighbours` and `search` of the `ExternalMemory`, if there is one.
    """
    params = {path: np.asarray(value, np.float32) for path, value in params.items()}
    try:
        model = nnx.eval_shape(lambda: _build(params, window, memory))
    except KeyError as error:
        raise UnsupportedCheckpoint(f"The checkpoint has no {error}.") from error
    except ValueError as error:
        raise UnsupportedCheckpoint(f"The checkpoint describes no model: {error}") from error
    return filled(model, params, lambda path: Source(from_brt_path(path)))


class Source(NamedTuple):
    """A parameter's name in the checkpoint, and the function to brt's array."""

    name: str
    arrange: Callable[[np.ndarray], np.ndarray] = lambda x: x

    def read(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        if self.name not in arrays:
            raise UnsupportedCheckpoint(f"The checkpoint has no {self.name!r}.")
        return self.arrange(arrays[self.name])


def filled(
    model: Any,
    params: Mapping[str, np.ndarray],
    source_of: Callable[[Iterable], Source | None],
    unused: Collection[str] = (),
) -> Any:
    """Fills an abstract model with parameters of a checkpoint.

    source_of: from a path in the model; "begin" and None: zeros. unused: names of params that may
    remain unused.
    """
    graph, shapes = nnx.split(model, nnx.Param)
    used, flat = set(unused), []
    for path, leaf in nnx.to_flat_state(shapes):
        source = source_of(path)
        value = np.zeros(leaf.shape, np.float32)
        if source and source.name != "begin":
            used.add(source.name)
            value = source.read(params)
            if value.shape != leaf.shape:
                raise UnsupportedCheckpoint(
                    f"{source.name!r} has shape {value.shape}; brt needs {leaf.shape} for "
                    f"{'/'.join(map(str, path))}."
                )
        flat.append((path, jnp.asarray(value)))
    if left := params.keys() - used:
        raise UnsupportedCheckpoint(f"brt has no counterpart for {sorted(left)[:5]}.")
    return nnx.merge(graph, nnx.from_flat_state(flat))


def _build(params, window, memory):
    count = len({match[0] for path in params if (match := re.match(r"transformer\d+/", path))})
    recurrent = [i for i in range(count) if f"{LAYER.format(i)}recurrent_initial_state" in params]
    heads = params[f"{LAYER.format(0)}{TOKENS}_kvq/attention_scale"].shape[0]
    D, A = params[f"{LAYER.format(0)}{TOKENS}_kvq/queries_layer/kernel"].shape
    crossing = [i for i in range(count) if f"{LAYER.format(i)}{TOKENS}attention_scale2" in params]
    memorizing = [i for i in range(count) if f"{LAYER.format(i)}{MIX}" in params]
    cell = {}
    if recurrent:
        prefix = LAYER.format(recurrent[0])
        projects = f"{prefix}{STATES}post_attn_mlp/output_layer/kernel" in params
        feeds = f"{prefix}{STATES}ffn/output_layer/kernel" in params
        cell = {
            "num_states": params[f"{prefix}recurrent_initial_state"].shape[0],
            "arrangement": {(True, True): "dual", (False, True): "single", (True, False): "skip"}[
                projects, feeds
            ],
            "gate": "fixed"
            if any(re.match(f"{prefix}{STATES}.*/gate_bias$", path) for path in params)
            else "lstm",
            "gate_form": "meliad",
        }
    return BlockRecurrentTransformer(
        nnx.Rngs(0),
        vocabulary_size=params["embed/embedding"].shape[0],
        num_layers=count,
        width=D,
        num_heads=heads,
        head_size=A // heads,
        feed_forward_size=params[f"{LAYER.format(0)}{TOKENS}ffn/hidden0/kernel"].shape[1],
        window=window,
        recurrent_layers=tuple(recurrent),
        memorizing_layers=tuple(memorizing),
        feedback=len(crossing) > len(recurrent),
        logits_divisor="width",
        dropout=0.0,
        activation_dtype="float32",
        remat="none",
        cell=functools.partial(RecurrentCell, **cell),
        memory=functools.partial(ExternalMemory, **memory),
    )


_ATTENTION = {
    r"queries_DA": "_kvq/queries_layer/kernel",
    r"keys_DA": "_kvq/keys_layer/kernel",
    r"values_DA": "_kvq/values_layer/kernel",
    r"cross_queries_DA": "_kvq/queries2_layer/kernel",
    r"attention_scale_H": "_kvq/attention_scale",
    r"cross_scale_H": "attention_scale2",
    r"(attention_norm|norm)/scale_D": "_kvq/pre_attn_layernorm/scale",
    r"feed_forward_norm/scale_D": "pre_ffn_layernorm/scale",
    r"output_[AC]D": "post_attn_mlp/output_layer/kernel",
    r"(feed_forward/)?hidden_[DC]F": "ffn/hidden0/kernel",
    r"feed_forward/output_FD": "ffn/output_layer/kernel",
    r"state_ids_SD": "_kvq/position_embeddings",
}
_GATE = {
    "candidate_.D": "output_layer/kernel",
    "keep_bias_D": "gate_bias",
    "input_.D": "input_gate/kernel",
    "input_bias_D": "input_gate/bias",
    "forget_.D": "forget_gate/kernel",
    "forget_bias_D": "forget_gate/bias",
}
_GATES = {"attention_gate/": "post_attn_mlp/", "feed_forward_gate/": "ffn/"}
_TOP = {"embedding_VD": "embed/embedding", "begin_D": "begin"}
_TOP["final_norm/scale_D"] = "final_layernorm/scale"


def from_brt_path(path: Iterable) -> str:
    """Maps `("layers", 0, "keys_DA")` to meliad's name, `transformer0/...`."""
    name = "/".join(map(str, path))
    if name in _TOP:
        return _TOP[name]
    _, layer, rest = name.split("/", 2)
    prefix = LAYER.format(layer)
    if rest == "relative_bias/table_HR":
        return prefix + "relative_positions/rel_embedding"
    if rest == "memory/mix_H":
        return prefix + MIX
    if rest == "cell/initial_states_SD":
        return prefix + "recurrent_initial_state"
    side = STATES if rest.startswith("cell/") else TOKENS
    rest = rest.removeprefix("cell/")
    for gate, source in _GATES.items():
        if rest.startswith(gate):
            return prefix + side + source + _translate(_GATE, rest.removeprefix(gate))
    return prefix + side + _translate(_ATTENTION, rest)


def _translate(table, name):
    for pattern, source in table.items():
        if re.fullmatch(pattern, name):
            return source
    raise UnsupportedCheckpoint(f"meliad has no counterpart for brt's {name!r}.")
