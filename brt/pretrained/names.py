"""The names on disk of a model's parameters."""

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from flax.traverse_util import unflatten_dict

from brt.pretrained.folder import HubFolder


class Tensor(NamedTuple):
    """A tensor on disk and its parameters.

    parameters: paths such as "layers.0.queries_DA"; several are concatenated along the last axis,
    after transposing.
    transposed: a matrix stored (out, in); parameters are (in, out).
    heads: the parts are concatenated within each of so many heads; 0: one after the other.
    optional: a folder may lack it; the parameters then keep their random values.
    """

    name: str
    parameters: tuple[str, ...]
    transposed: bool = False
    heads: int = 0
    optional: bool = False

    def split(self, array: np.ndarray) -> list[np.ndarray]:
        array = array.T if self.transposed else array
        parts = len(self.parameters)
        if not self.heads:
            return np.split(array, parts, axis=-1)
        by_head = array.reshape(*array.shape[:-1], self.heads, parts, -1)
        return [by_head[..., i, :].reshape(*array.shape[:-1], -1) for i in range(parts)]

    def join(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        if self.heads:
            by_head = [part.reshape(*part.shape[:-1], self.heads, -1) for part in arrays]
            array = np.stack(by_head, axis=-2).reshape(*arrays[0].shape[:-1], -1)
        else:
            array = arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis=-1)
        return array.T if self.transposed else array

    def shape(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        whole = (*shapes[0][:-1], sum(shape[-1] for shape in shapes))
        return whole[::-1] if self.transposed else whole


def norm_tensors(disk: str, path: str, bias: bool = True) -> list[Tensor]:
    scale = Tensor(f"{disk}.weight", (f"{path}.scale_D",))
    return [scale, Tensor(f"{disk}.bias", (f"{path}.bias_D",))] if bias else [scale]


def matrix_tensors(disk: str, path: str, bias: str = "") -> list[Tensor]:
    """Returns the tensors of a matrix stored (out, in) and of its bias; "": no bias."""
    matrix = Tensor(f"{disk}.weight", (path,), transposed=True)
    return [matrix, Tensor(f"{disk}.bias", (bias,))] if bias else [matrix]


def prefixed(tensors: Iterable[Tensor], path: str, disk: str = "") -> list[Tensor]:
    return [
        tensor._replace(
            name=disk + tensor.name, parameters=tuple(path + part for part in tensor.parameters)
        )
        for tensor in tensors
    ]


def layer_tensors(count: int, path: str, disk: str, tensors: Iterable[Tensor]) -> list[Tensor]:
    tensors = list(tensors)
    return [
        tensor for i in range(count) for tensor in prefixed(tensors, f"{path}.{i}.", f"{disk}.{i}.")
    ]


def optional(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensor._replace(optional=True) for tensor in tensors]


@dataclasses.dataclass(frozen=True)
class Names:
    """The tensors of a model's folder.

    prefix: of the names of the backbone, missing in folders without a head.
    ignored: patterns of further names with the prefix: buffers, and heads of other tasks.
    old_endings: pairs of an ending in old files, and the ending in `tensors`.
    """

    tensors: tuple[Tensor, ...]
    prefix: str = ""
    ignored: tuple[str, ...] = ()
    old_endings: tuple[tuple[str, str], ...] = ()

    def on_disk(self, folder: HubFolder) -> dict[str, str]:
        """Returns the name in the folder of each of its tensors.

        Refuses duplicate, missing and unknown tensors.
        """
        expected = {tensor.name for tensor in self.tensors}
        names: dict[str, str] = {}
        unknown = []
        for name in folder.tensors:
            known = self._known(name, expected)
            if known in names:
                raise ValueError(
                    f"{folder.path} holds {known} twice, as {names[known]} and as {name}: remove "
                    "one of them."
                )
            if known in expected:
                names[known] = name
            elif not self._ignores(known):
                unknown.append(name)
        missing = [t.name for t in self.tensors if not t.optional and t.name not in names]
        if missing:
            also = f", and {unknown[0]} is no tensor of this model" if unknown else ""
            raise ValueError(
                f"{folder.path} lacks {_listed(missing)}, which its config.json asks for{also}."
            )
        if unknown:
            raise ValueError(
                f"{folder.path} holds {_listed(unknown)}, which brt would leave unread: the "
                "config.json belongs to another model, or brt does not know this form of it."
            )
        return names

    def _ignores(self, name):
        return any(re.fullmatch(pattern, name) for pattern in self.ignored)

    def _known(self, name, expected):
        for old, new in self.old_endings:
            if name.endswith(old):
                name = name.removesuffix(old) + new
                break
        if name in expected or name.startswith(self.prefix):
            return name
        long = self.prefix + name
        return long if long in expected or self._ignores(long) else name

    def _held(self, folder: HubFolder) -> Iterator[tuple[Tensor, str]]:
        on_disk = self.on_disk(folder)
        return ((t, on_disk[t.name]) for t in self.tensors if t.name in on_disk)

    def check(self, folder: HubFolder, parameters: Mapping) -> None:
        """Compares names and shapes with a nested dictionary of parameters; reads headers only."""
        for tensor, name in self._held(folder):
            expected = tensor.shape([tuple(leaf(parameters, p).shape) for p in tensor.parameters])
            info = folder.tensors[name]
            if info.shape != expected:
                raise ValueError(
                    f"{folder.file(info.file)}: {name} has shape {info.shape}, and by config.json "
                    f"it is {expected}."
                )

    def read(self, folder: HubFolder) -> dict[str, Any]:
        flat = {}
        for tensor, name in self._held(folder):
            parts = tensor.split(folder.read(name))
            for path, array in zip(tensor.parameters, parts, strict=True):
                steps = tuple(int(step) if step.isdigit() else step for step in path.split("."))
                flat[steps] = np.ascontiguousarray(array)
        return unflatten_dict(flat)

    def missing(self, folder: HubFolder) -> list[str]:
        on_disk = self.on_disk(folder)
        return [tensor.name for tensor in self.tensors if tensor.name not in on_disk]

    def write(self, parameters: Mapping) -> dict[str, np.ndarray]:
        return {
            tensor.name: tensor.join([np.asarray(leaf(parameters, p)) for p in tensor.parameters])
            for tensor in self.tensors
        }


def leaf(tree: Any, path: str) -> Any:
    for step in path.split("."):
        tree = tree[int(step) if step.isdigit() and int(step) in tree else step]
    return tree


def _listed(names):
    rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + rest
