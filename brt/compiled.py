"""Reads the text of a compiled program: the collectives in it, inside and outside of its loops.

    found = collectives(step.lower(state, batch).compile().as_text())
    inside = [one for one in found if one.loops]
    over_rows = [one for one in inside if "data" in axes_crossed(one, {"data": 4, "model": 2})]

The text is XLA's own (HLO), of any platform that compiles here or ahead of time.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

KINDS = (
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-broadcast",
    "collective-permute",
    "ragged-all-to-all",
    "reduce-scatter",
)
"""Operations in which chips exchange data."""

BITS = {"pred": 8, "c64": 64, "c128": 128, "token": 0, "opaque": 0}
"""Bits of an element of the types whose names do not end in them."""

COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-~]+)(?: \(.*)? (?:-> .*)?\{$")
INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-~]+) = (.*)$")
CALLED = re.compile(r"(\w+)=(?:%([\w.\-~]+)|\{(%[^{}]*)\})")
OPERAND = re.compile(r"%([\w.\-~]+)")
ARRAY = re.compile(r"\b([a-z][a-z0-9]*)\[([0-9,<=]*)\]")
LISTED_GROUPS = re.compile(r"(?:replica_groups|source_target_pairs)=\{(\{[0-9,{} ]*\}|)\}")
COUNTED_GROUPS = re.compile(r"replica_groups=\[([0-9,]+)\]<=\[([0-9,]+)\](?:T\(([0-9,]+)\))?")
TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
SCOPE = re.compile(r'op_name="([^"]*)"')


class Instruction(NamedTuple):
    """One line of a computation.

    shape: of what it returns, as printed, such as "f32[8,64]{1,0}" or a tuple of these.
    operation: "dot", "all-gather-start", "while" and so on.
    operands, attributes: what is printed in the parentheses and behind them.
    """

    name: str
    shape: str
    operation: str
    operands: str
    attributes: str

    @property
    def called(self) -> dict[str, list[str]]:
        """Names of the computations it calls, by attribute: body, condition, calls, to_apply."""
        found: dict[str, list[str]] = {}
        for attribute, one, several in CALLED.findall(self.attributes):
            found.setdefault(attribute, []).extend([one] if one else OPERAND.findall(several))
        return found

    @property
    def scope(self) -> str:
        """The named scopes and the operation of the program it comes from; empty if not given."""
        match = SCOPE.search(self.attributes)
        return match[1] if match else ""


class Collective(NamedTuple):
    """One exchange between chips.

    kind: one of `KINDS`.
    bytes: of the larger of what one chip gives and what it gets, once.
    groups: ids of the devices that exchange with one another, in the order of the mesh's devices;
        empty if all do.
    loops: how many loops it lies in.
    times: how often it runs in a run of the program, as far as the loops' lengths are known.
    scope: named scopes and operation of the program it comes from.
    """

    kind: str
    bytes: int
    groups: tuple[tuple[int, ...], ...]
    loops: int
    times: int
    scope: str


def computations(text: str) -> tuple[dict[str, list[Instruction]], str]:
    """Returns the instructions of each computation of a compiled program, and the entry's name.

    text: of `jax.stages.Compiled.as_text`.

    Raises:
        ValueError: the text has no entry computation.
    """
    found: dict[str, list[Instruction]] = {}
    entry = ""
    name = ""
    for line in text.splitlines():
        if heading := COMPUTATION.match(line):
            name = heading[2]
            found[name] = []
            entry = name if heading[1] else entry
        elif name and (match := INSTRUCTION.match(line)):
            found[name].append(_instruction(match[1], match[2]))
    if not entry:
        raise ValueError("The text of a compiled program must hold a line that begins with ENTRY.")
    return found, entry


def collectives(text: str) -> list[Collective]:
    """Returns the collectives of a compiled program, one for each line that it is reached by.

    An exchange in two halves (start and done) counts once, at its start.

    text: of `jax.stages.Compiled.as_text`.
    """
    found, entry = computations(text)
    return list(_collectives(found, entry, loops=0, times=1))


def axes_crossed(collective: Collective, mesh_shape: Mapping[str, int]) -> set[str]:
    """Returns the axes of the mesh along which a collective exchanges.

    mesh_shape: sizes of the axes by name, in the mesh's order, as `jax.sharding.Mesh.shape`.
    """
    sizes = list(mesh_shape.values())
    groups = collective.groups or (tuple(range(math.prod(sizes))),)
    crossed = set()
    for group in groups:
        places = [_place(device, sizes) for device in group]
        for name, along in zip(mesh_shape, zip(*places, strict=True), strict=True):
            if len(set(along)) > 1:
                crossed.add(name)
    return crossed


def array_bytes(shape: str) -> int:
    """Returns the bytes of the arrays in a printed shape, "f32[8,64]{1,0}" or a tuple of these."""
    return sum(_each_array(shape))


# How the text is read.


def _instruction(name: str, rest: str) -> Instruction:
    """Splits what stands behind a line's equals sign; the shape may be a tuple of shapes."""
    end = _closing(rest, 0) + 1 if rest.startswith("(") else rest.index(" ")
    shape, rest = rest[:end], rest[end:].lstrip()
    opens = rest.index("(")
    closes = _closing(rest, opens)
    return Instruction(name, shape, rest[:opens], rest[opens + 1 : closes], rest[closes + 1 :])


def _closing(text: str, opens: int) -> int:
    """Returns the index of the parenthesis that closes the one at an index."""
    depth = 0
    for index in range(opens, len(text)):
        depth += (text[index] == "(") - (text[index] == ")")
        if depth == 0:
            return index
    return len(text) - 1


def _collectives(found, name, loops: int, times: int) -> Iterator[Collective]:
    """Yields the collectives of a computation and of all that it calls."""
    shapes = {line.name: line.shape for line in found[name]}
    for line in found[name]:
        kind = line.operation.removesuffix("-start")
        if kind in KINDS:
            given = [shapes.get(operand, "") for operand in OPERAND.findall(line.operands)]
            # The result of a start may be a tuple of what was given and what comes back.
            apart = sum(map(array_bytes, given))
            returned = array_bytes(line.shape)
            if kind != line.operation and line.shape.startswith("("):
                returned = max(_each_array(line.shape), default=0)
            groups = tuple(_groups(line.attributes))
            yield Collective(kind, max(apart, returned), groups, loops, times, line.scope)
        for attribute, names in line.called.items():
            looped = line.operation == "while" and attribute in ("body", "condition")
            trips = TRIPS.search(line.attributes) if looped else None
            for inner in names:
                if inner in found:
                    yield from _collectives(
                        found, inner, loops + looped, times * (int(trips[1]) if trips else 1)
                    )


def _each_array(shape: str) -> Iterator[int]:
    for kind, axes in ARRAY.findall(shape):
        digits = re.search(r"^[a-z]+(\d+)", kind)
        bits = BITS.get(kind, int(digits[1]) if digits else 0)
        sizes = [int(size.lstrip("<=")) for size in axes.split(",") if size]
        yield math.ceil(bits * math.prod(sizes) / 8)


def _groups(attributes: str) -> Iterable[tuple[int, ...]]:
    """Returns the groups of devices, written out or as a reshaped and transposed range."""
    if match := COUNTED_GROUPS.search(attributes):
        shape, sizes, order = (
            [int(n) for n in part.split(",")] if part else [] for part in match.groups()
        )
        ids = _transposed(sizes, order or list(range(len(sizes))))
        length = shape[-1]
        return [tuple(ids[at : at + length]) for at in range(0, len(ids), length)]
    if match := LISTED_GROUPS.search(attributes):
        return [
            tuple(int(n) for n in group.split(","))
            for group in re.findall(r"\{([0-9, ]+)\}", match[1])
        ]
    return []


def _transposed(sizes: list[int], order: list[int]) -> list[int]:
    """Returns the numbers 0, 1, ... of an array of these sizes, its axes put in another order."""
    ids = [0]
    for axis in order:
        step = math.prod(sizes[axis + 1 :])
        ids = [number + step * index for number in ids for index in range(sizes[axis])]
    return ids


def _place(device: int, sizes: list[int]) -> list[int]:
    place = []
    for size in reversed(sizes):
        device, index = divmod(device, size)
        place.append(index)
    return place[::-1]
