"""Sums over a compiled program: cycles by named scope and by loop, and its collectives."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from brt.benchmarks.hlo import Instruction, Program, array_bytes, trip_count, visits

PARTS = (
    *("attention", "states", "feed_forward", "memory", "embedding", "vocabulary", "optimizer"),
)
"""Named scopes of models and of the training step."""

OTHER = "other"
"""The part of what carries no named scope."""

KINDS = (
    *("all-gather", "all-reduce", "reduce-scatter", "collective-permute", "all-to-all"),
    *("collective-broadcast", "ragged-all-to-all"),
)
"""Instructions that move data between devices."""

_LAYER = re.compile(r"layers?\d+(?:[-_.]+\d+)?")
_WORDS = re.compile(r"[^/()]+")
_BRACES = re.compile(r"\{([\d,]*)\}")
_IOTA = re.compile(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")


def scope(op_name: str) -> str | None:
    """Returns the layer and part that a path of scopes names, such as "layer3/attention".

    A part outside layers stands alone, and a layer without a part too; None if there is neither.
    Transformations write brackets around scopes: "jit(step)/transpose(jvp(layer3))/attention/dot".
    """
    words = _WORDS.findall(op_name)
    layer = next((word for word in words if _LAYER.fullmatch(word)), None)
    after = words if layer is None else words[words.index(layer) :]
    part = next((word for word in after if word in PARTS), None)
    return "/".join(filter(None, (layer, part))) or None


def part(name: str | None) -> str:
    """Returns the part of a scope without its layer; "other" of no scope."""
    word = (name or OTHER).rpartition("/")[2]
    return word if word in PARTS else OTHER


def is_backward(op_name: str) -> bool:
    """Tells whether a path of scopes belongs to the backward pass."""
    return "transpose(" in op_name


class Scopes:
    """Named scopes of instructions.

    One without a scope of its own, such as a copy that the compiler added, has that of most of
    what it fuses, and otherwise that of the first of its operands that has any.

    Args:
        program: the compiled program they belong to.
    """

    def __init__(self, program: Program):
        self.program = program
        self._by_name = {
            each.name: each for lines in program.computations.values() for each in lines
        }
        self._found: dict[str, str | None] = {}

    def of(self, instruction: Instruction) -> str | None:
        """Returns the scope of an instruction; None if nothing tells."""
        if instruction.name not in self._found:
            self._found[instruction.name] = None  # for what would ask for itself
            self._found[instruction.name] = self._search(instruction)
        return self._found[instruction.name]

    def _search(self, instruction):
        if own := scope(instruction.op_name):
            return own
        for name in instruction.called.get("calls", ()):
            inner = Counter(filter(None, map(self.of, self.program.computations[name])))
            if inner:
                return inner.most_common(1)[0][0]
        if instruction.opcode in ("while", "conditional", "parameter"):
            return None
        operands = filter(None, map(self._by_name.get, instruction.operand_names))
        return next(filter(None, map(self.of, operands)), None)


class LoopCost(NamedTuple):
    """A loop of the program.

    name, scope: of its instruction; the scope of most of its cycles.
    backward: whether it belongs to the backward pass.
    trips: how often its body runs for one run of the loop; None if unknown.
    times: how often the loop runs in one run of the program.
    body_cycles: of one run of its body.
    cycles: of the whole program's runs of it.
    """

    name: str
    scope: str | None
    backward: bool
    trips: int | None
    times: int
    body_cycles: int
    cycles: int


class Cycles(NamedTuple):
    """Estimated cycles of one run of a program.

    total: of all instructions, those in loops as often as they run.
    by_scope: the same by scope; "other" for those without one.
    loops: every loop, the most expensive first.
    """

    total: int
    by_scope: dict[str, int]
    loops: list[LoopCost]

    @property
    def by_part(self) -> dict[str, int]:
        """Cycles by part, of all layers together, the most expensive first."""
        found: Counter[str] = Counter()
        for name, cycles in self.by_scope.items():
            found[part(name)] += cycles
        return dict(found.most_common())


def estimated_cycles(program: Program) -> Cycles:
    """Sums the compiler's estimates, `estimated_cycles` of each operation that runs by itself.

    Instructions that wait for one begun before, and such as the compiler says nothing of, cost
    nothing here; so do conditions of loops.
    """
    scopes = Scopes(program)
    by_scope: Counter[str] = Counter()
    of_loop: Counter[str] = Counter()
    scopes_of_loop: dict[str, Counter[str | None]] = {}
    backward_of_loop: Counter[str] = Counter()
    found = {}
    total = 0
    for instruction, times, loops, fused in visits(program):
        if instruction.opcode == "while":
            found[instruction.name] = instruction, times
        cycles = 0 if fused else instruction.cycles * times
        if not cycles:
            continue
        name = scopes.of(instruction)
        total += cycles
        by_scope[name or OTHER] += cycles
        for loop in loops:
            of_loop[loop] += cycles
            scopes_of_loop.setdefault(loop, Counter())[name] += cycles
            backward_of_loop[loop] += cycles if is_backward(instruction.op_name) else 0
    costs = []
    for name, (instruction, times) in found.items():
        trips = trip_count(program, instruction)
        inside = scopes_of_loop.get(name)
        cycles = of_loop[name]
        costs.append(
            LoopCost(
                name=name,
                scope=inside.most_common(1)[0][0] if inside else scope(instruction.op_name),
                backward=is_backward(instruction.op_name) or 2 * backward_of_loop[name] > cycles,
                trips=trips,
                times=times,
                body_cycles=cycles // (times * (trips or 1)),
                cycles=cycles,
            )
        )
    costs.sort(key=lambda cost: -cost.cycles)
    return Cycles(total, dict(by_scope.most_common()), costs)


class Collective(NamedTuple):
    """A collective of the program.

    kind: one of KINDS.
    bytes: of the arrays it takes or gives on one device, whichever are more, each time.
    times: how often it runs in one run of the program.
    loops: names of the loops around it.
    groups: device numbers that exchange data with one another; () for all devices.
    scope: its named scope.
    """

    kind: str
    bytes: int
    times: int
    loops: tuple[str, ...]
    groups: tuple[tuple[int, ...], ...]
    scope: str | None


def collectives(program: Program) -> list[Collective]:
    """Returns every collective that the program reaches, in fusions too.

    Of one that is split into start and done, the start counts.
    """
    scopes = Scopes(program)
    shapes = {each.name: each.shape for lines in program.computations.values() for each in lines}
    found = []
    for instruction, times, loops, _ in visits(program):
        kind = instruction.opcode.removesuffix("-start")
        if kind not in KINDS:
            continue
        taken = sum(array_bytes(shapes.get(name, "")) for name in instruction.operand_names)
        given = array_bytes(instruction.shape)
        if instruction.opcode.endswith("-start") and given > taken:
            given -= taken  # the result of a start holds its operands too
        found.append(
            Collective(
                kind=kind,
                bytes=max(taken, given),
                times=times,
                loops=loops,
                groups=device_groups(instruction.attributes),
                scope=scopes.of(instruction),
            )
        )
    return found


def device_groups(attributes: str) -> tuple[tuple[int, ...], ...]:
    """Returns the groups of devices that a collective names; () if it names none.

    Three forms are printed: {{0,1},{2,3}}, its short form [2,2]<=[4] or [2,2]<=[2,2]T(1,0), and
    the pairs of a permutation.
    """
    for name in ("replica_groups=", "source_target_pairs="):
        at = attributes.find(name)
        if at < 0:
            continue
        text = attributes[at + len(name) :]
        if short := _IOTA.match(text):
            sizes, source = (_numbers(short[index]) for index in (1, 2))
            devices = np.arange(int(np.prod(source))).reshape(source)
            if short[3]:
                devices = devices.transpose(_numbers(short[3]))
            return tuple(map(tuple, devices.reshape(sizes).tolist()))
        braces = re.match(r"\{(?:\{[\d,]*\},?)*\}", text)
        if braces:
            inner = (_numbers(group) for group in _BRACES.findall(braces[0][1:-1]))
            return tuple(group for group in inner if group)
    return ()


def _numbers(text) -> tuple[int, ...]:
    return tuple(map(int, filter(None, text.split(","))))


def axes_of(groups: Sequence[Sequence[int]], mesh: Mapping[str, int]) -> tuple[str, ...]:
    """Returns the axes of a mesh along which groups of devices exchange data.

    Args:
        groups: of `Collective.groups`; none for all devices.
        mesh: axis names to sizes, the last axis fastest, as in `Mesh.shape`. Device numbers are
            positions in the mesh.
    """
    shape = tuple(mesh.values())
    if not groups:
        groups = [range(int(np.prod(shape)))]
    varied: set[str] = set()
    for group in groups:
        places = np.stack(np.unravel_index(np.asarray(group), shape))
        varied |= {name for name, row in zip(mesh, places, strict=True) if len(set(row)) > 1}
    return tuple(name for name in mesh if name in varied)


def collective_sums(found: Iterable[Collective]) -> dict[str, dict[str, dict[str, int]]]:
    """Returns counts and bytes by kind, inside and outside of loops.

    Returns:
        {"in_loops": {kind: {"count", "runs", "bytes"}}, "outside": the same}: count of
        instructions, how often they run in a step, and the bytes of all runs.
    """
    sums: dict[str, dict[str, dict[str, int]]] = {"in_loops": {}, "outside": {}}
    for each in found:
        place = sums["in_loops" if each.loops else "outside"]
        entry = place.setdefault(each.kind, {"count": 0, "runs": 0, "bytes": 0})
        entry["count"] += 1
        entry["runs"] += each.times
        entry["bytes"] += each.bytes * each.times
    return sums
