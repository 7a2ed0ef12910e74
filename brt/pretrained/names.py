"""Which parameter a tensor of a folder is: one table a family, by which it is read and written.

A table is a list of `Tensor`. It is linear, so gradients are given names on disk by it as well.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from brt.pretrained.folder import HubFolder


class Tensor(NamedTuple):
    """A tensor on disk and the parameters it holds.

    Attributes:
        name: on disk.
        parameters: paths in the tree of parameters, as "layers.0.queries_DA". Several stand side
            by side along the last axis, after `turned`.
        turned: a matrix stored (out, in); parameters are (in, out).
        heads: the parts stand side by side in each of so many heads, and not one after the other;
            0 for the latter.
        optional: it may be missing, and then keeps the values it was drawn with.
    """

    name: str
    parameters: tuple[str, ...]
    turned: bool = False
    heads: int = 0
    optional: bool = False

    def split(self, array: np.ndarray) -> list[np.ndarray]:
        """Returns the parameters in a tensor of the disk, in the order of `parameters`."""
        array = array.T if self.turned else array
        parts = len(self.parameters)
        if parts == 1:
            return [array]
        if not self.heads:
            return np.split(array, parts, axis=-1)
        by_head = array.reshape(*array.shape[:-1], self.heads, parts, -1)
        return [by_head[..., i, :].reshape(*array.shape[:-1], -1) for i in range(parts)]

    def join(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """Returns the tensor of the disk that holds these parameters."""
        if len(arrays) == 1:
            array = arrays[0]
        elif not self.heads:
            array = np.concatenate(arrays, axis=-1)
        else:
            by_head = [part.reshape(*part.shape[:-1], self.heads, -1) for part in arrays]
            array = np.stack(by_head, axis=-2).reshape(*arrays[0].shape[:-1], -1)
        return array.T if self.turned else array

    def shape(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        """Returns the shape on disk of parameters of these shapes."""
        whole = (*shapes[0][:-1], sum(shape[-1] for shape in shapes))
        return whole[::-1] if self.turned else whole


def norm_tensors(disk: str, ours: str, bias: bool = True) -> list[Tensor]:
    """Returns the tensors of a norm: its weight, and its bias if it has one."""
    weight = Tensor(f"{disk}.weight", (f"{ours}.scale_D",))
    return [weight, Tensor(f"{disk}.bias", (f"{ours}.bias_D",))] if bias else [weight]


def matrix_tensors(disk: str, ours: str, bias: str | None = None) -> list[Tensor]:
    """Returns the tensors of a matrix stored (out, in) and its bias.

    Args:
        disk: the name without `.weight`.
        ours: path of the parameter.
        bias: path of the bias; None for no bias.
    """
    found = [Tensor(f"{disk}.weight", (ours,), turned=True)]
    return found if bias is None else [*found, Tensor(f"{disk}.bias", (bias,))]


def head_tensors(disk: str, tied: bool) -> tuple[list[Tensor], tuple[str, ...]]:
    """Returns the tensors of the head of the words, and patterns of those that are not read.

    disk: its name. tied: what stands under the name is the table of words, stored twice.
    """
    return ([], (re.escape(disk),)) if tied else ([Tensor(disk, ("head_VD",))], ())


@dataclasses.dataclass(frozen=True)
class Names:
    """The tensors of a model's folder, and what else may stand beside them.

    Attributes:
        tensors: all of them.
        prefix: what the names of the model without its head begin with; folders of such a model
            leave it out.
        ignored: regular expressions of whole names, prefix included: buffers, and heads of other
            tasks.
        old_endings: pairs of an ending that old files use, and the ending in `tensors`.
    """

    tensors: tuple[Tensor, ...]
    prefix: str = ""
    ignored: tuple[str, ...] = ()
    old_endings: tuple[tuple[str, str], ...] = ()

    def on_disk(self, folder: HubFolder) -> dict[str, str]:
        """Returns the name in the folder of each tensor of the table that is there.

        Raises:
            ValueError: a tensor that is there under two names, is missing, or is left over.
        """
        expected = {tensor.name for tensor in self.tensors}
        found: dict[str, str] = {}
        left_over = []
        for name in folder.tensors:
            known = self._known(name, expected)
            if known in found:
                raise ValueError(
                    f"{folder.path} holds {known} twice, as {found[known]} and as {name}: remove "
                    "one of them."
                )
            if known in expected:
                found[known] = name
            elif not any(re.fullmatch(pattern, known) for pattern in self.ignored):
                left_over.append(name)
        missing = [t.name for t in self.tensors if not t.optional and t.name not in found]
        if missing:
            also = f", and {left_over[0]} is no tensor of this model" if left_over else ""
            raise ValueError(
                f"{folder.path} lacks {_listed(missing)}, which its config.json asks for{also}."
            )
        if left_over:
            raise ValueError(
                f"{folder.path} holds {_listed(left_over)}, which brt would leave unread: the "
                "config.json belongs to another model, or brt does not know this form of it."
            )
        return found

    def _known(self, name, expected):
        for old, new in self.old_endings:
            if name.endswith(old):
                name = name.removesuffix(old) + new
                break
        with_prefix = self.prefix + name
        if name in expected or not self.prefix or name.startswith(self.prefix):
            return name
        matches = with_prefix in expected
        matches = matches or any(re.fullmatch(pattern, with_prefix) for pattern in self.ignored)
        return with_prefix if matches else name

    def check(self, folder: HubFolder, parameters: Mapping) -> None:
        """Refuses a folder whose tensors are not those of the parameters; reads headers only.

        parameters: nested dictionary of arrays or shapes.

        Raises:
            ValueError: as `on_disk`; a tensor of another shape.
        """
        on_disk = self.on_disk(folder)
        for tensor in self.tensors:
            if tensor.name not in on_disk:
                continue
            shapes = [tuple(leaf(parameters, path).shape) for path in tensor.parameters]
            expected = tensor.shape(shapes)
            info = folder.tensors[on_disk[tensor.name]]
            if info.shape != expected:
                raise ValueError(
                    f"{folder.file(info.file)}: {on_disk[tensor.name]} has shape {info.shape}, and "
                    f"by config.json it is {expected}."
                )

    def read(self, folder: HubFolder) -> dict[str, Any]:
        """Returns the parameters that the folder holds, a nested dictionary of float32 arrays."""
        on_disk = self.on_disk(folder)
        found: dict[str, Any] = {}
        for tensor in self.tensors:
            if tensor.name in on_disk:
                parts = tensor.split(folder.read(on_disk[tensor.name]))
                for path, array in zip(tensor.parameters, parts, strict=True):
                    _put(found, path, np.ascontiguousarray(array))
        return found

    def missing(self, folder: HubFolder) -> list[str]:
        """Returns the optional tensors that the folder does not hold."""
        on_disk = self.on_disk(folder)
        return [tensor.name for tensor in self.tensors if tensor.name not in on_disk]

    def write(self, parameters: Mapping) -> dict[str, np.ndarray]:
        """Returns the tensors on disk of a nested dictionary of parameters, or of gradients."""
        return {
            tensor.name: tensor.join([np.asarray(leaf(parameters, p)) for p in tensor.parameters])
            for tensor in self.tensors
        }


def leaf(tree: Any, path: str) -> Any:
    """Returns what stands in a nested dictionary at a path such as "layers.0.queries_DA"."""
    for step in path.split("."):
        tree = tree[int(step) if step.isdigit() and int(step) in tree else step]
    return tree


def _put(tree, path, array):
    *steps, last = path.split(".")
    for step in steps:
        tree = tree.setdefault(int(step) if step.isdigit() else step, {})
    tree[last] = array


def _listed(names):
    rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + rest
