"""Costs by named scope and loop, and collectives, of a compiled program."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from brt.benchmarks.hlo import Instruction, Program, arrays, bytes_of, trip_count, visits

PARTS = frozenset(
    ("attention", "states", "feed_forward", "memory", "embedding", "vocabulary", "optimizer")
)
"""Scopes of models and of the training step."""
OTHER = "other"
LOOPS = frozenset(("microbatches",))
"""Scopes of loops over several parts of a model."""

KINDS = (
    *("all-gather", "all-reduce", "reduce-scatter", "collective-permute", "all-to-all"),
    *("collective-broadcast", "ragged-all-to-all"),
)

_LAYER = re.compile(r"layer\d+")
_WORDS = re.compile(r"[^/()]+")
_MESH = re.compile(
    r"mesh\[([^\]]*)\](?:, device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\))? \{([^}]*)\}"
)
_AXIS = re.compile(r"'(\w+)'=(\d+)")
_BRACES = re.compile(r"\{([\d,]*)\}")
_SLICES = re.compile(r'_xla_megascale_target="\{([\d,]+)\}x\{0:(\d+)\}"')
_CHANNEL = re.compile(r"\bchannel_id=(\d+)")
_BETWEEN_SLICES = re.compile(r'_xla_megascale_transfer_type="(\w+)"')
_IOTA = re.compile(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")


def scope(op_name: str) -> str | None:
    """Returns layer and part of a path of scopes, such as "layer3/attention", or None.

    op_name: such as "jit(step)/transpose(jvp(layer3))/attention/dot".
    """
    words = _WORDS.findall(op_name)
    layer = next((word for word in words if _LAYER.fullmatch(word)), None)
    after = words if layer is None else words[words.index(layer) :]
    part = next((word for word in after if word in PARTS), None)
    return "/".join(filter(None, (layer, part))) or None


def part(name: str | None) -> str:
    word = (name or OTHER).rpartition("/")[2]
    return word if word in PARTS else OTHER


def is_backward(op_name: str) -> bool:
    return "transpose(" in op_name


class Scopes:
    """Named scopes of a program's instructions.

    Without one, an instruction has the most frequent scope of the instructions that it fuses, else
    that of its first operand with one.
    """

    def __init__(self, program: Program):
        self.program = program
        self._by_name = program.instructions()
        self._found: dict[str, str | None] = {}

    def of(self, instruction: Instruction) -> str | None:
        if instruction.name not in self._found:
            self._found[instruction.name] = None  # ends cycles
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

    scope: of most of its cost. trips: runs of the body per run of the loop; None if unknown.
    times: runs of the loop per run of the program.
    cost: of all runs of the loop; `body_cost` of one run of the body.
    """

    name: str
    scope: str | None
    backward: bool
    trips: int | None
    times: int
    body_cost: int
    cost: int


class Costs(NamedTuple):
    """Costs of one run of a program, in cycles or ns; loops sorted, the most expensive first."""

    total: int
    by_scope: dict[str, int]
    loops: list[LoopCost]

    @property
    def by_part(self) -> dict[str, int]:
        cost_by_part: Counter[str] = Counter()
        for name, cost in self.by_scope.items():
            cost_by_part[part(name)] += cost
        return dict(cost_by_part.most_common())


def estimated_cycles(program: Program) -> Costs:
    """Sums the cycles that the compiler estimates."""
    return costs(program, lambda instruction: instruction.cycles)


def costs(program: Program, cost_of: Callable[[Instruction], int]) -> Costs:
    """Sums the costs of one run of operations outside of fusions."""
    scopes = Scopes(program)
    by_scope: Counter[str] = Counter()
    inside: dict[str, Counter[tuple[str | None, bool]]] = {}
    whiles = {}
    for instruction, times, loops, fused in visits(program):
        if instruction.opcode == "while":
            whiles[instruction.name] = instruction, times
        cost = 0 if fused else cost_of(instruction) * times
        if not cost:
            continue
        name = scopes.of(instruction)
        by_scope[name or OTHER] += cost
        for loop in loops:
            inside.setdefault(loop, Counter())[name, is_backward(instruction.op_name)] += cost
    loop_costs = [
        _loop_cost(program, instruction, times, inside.get(name, Counter()))
        for name, (instruction, times) in whiles.items()
    ]
    loop_costs.sort(key=lambda loop: -loop.cost)
    return Costs(by_scope.total(), dict(by_scope.most_common()), loop_costs)


def _loop_cost(program, loop, times, inside) -> LoopCost:
    trips, cost = trip_count(program, loop), inside.total()
    by_scope: Counter[str | None] = Counter()
    for (name, _), part_cost in inside.items():
        by_scope[name] += part_cost
    name = by_scope.most_common(1)[0][0] if inside else scope(loop.op_name)
    name = next((word for word in _WORDS.findall(loop.op_name)[-2:] if word in LOOPS), name)
    backward = sum(part_cost for (_, is_back), part_cost in inside.items() if is_back)
    is_back = is_backward(loop.op_name) or 2 * backward > cost
    return LoopCost(loop.name, name, is_back, trips, times, cost // (times * (trips or 1)), cost)


class Collective(NamedTuple):
    """A collective of the program.

    bytes: of operands or results on one device, whichever are more, per run.
    times: runs per run of the program. loops: names of the enclosing loops.
    groups: numbers of devices that exchange data; () for all devices. arrays: types and shapes of
        what `bytes` counts.
    """

    kind: str
    bytes: int
    times: int
    loops: tuple[str, ...]
    groups: tuple[tuple[int, ...], ...]
    scope: str | None
    arrays: tuple[tuple[str, tuple[int, ...]], ...] = ()


def collectives(program: Program) -> list[Collective]:
    """Returns all reachable collectives; an asynchronous one counts by its start.

    The TPU's compiler writes the part of a collective between slices as a `send` to the host, and
    writes one that runs next to several fusions or a loop in each of its neighbours.
    """
    scopes = Scopes(program)
    shapes = {name: each.shape for name, each in program.instructions().items()}
    costs: list[Collective] = []
    chained: dict[str, int] = {}
    for instruction, times, loops, fused in visits(program):
        kind = instruction.opcode.removesuffix("-start")
        if kind == "send" and (between := _BETWEEN_SLICES.search(instruction.attributes)):
            kind = between[1].lower().replace("_", "-")
        elif kind not in KINDS:
            continue
        operands = (shapes.get(name, "") for name in instruction.operand_names)
        taken = [each for shape in operands for each in arrays(shape)]
        given = arrays(instruction.shape)
        if instruction.opcode == "send":
            given = taken  # the result has one number more
        if instruction.opcode.endswith("-start") and bytes_of(given) > bytes_of(taken):
            given = given[len(taken) :]  # the result of a start includes the operands
        groups = device_groups(instruction.attributes)
        most = max(taken, given, key=bytes_of)
        name = scopes.of(instruction)
        cost = Collective(kind, bytes_of(most), times, loops, groups, name, (*most,))
        channel = _CHANNEL.search(instruction.attributes)
        if fused and channel and "chain_id=" in instruction.attributes:
            position = chained.setdefault(channel[1], len(costs))
            if position < len(costs):  # it starts in the outermost loop
                costs[position] = min(costs[position], cost, key=lambda each: len(each.loops))
                continue
        costs.append(cost)
    return costs


def device_groups(attributes: str) -> tuple[tuple[int, ...], ...]:
    """Returns the device groups of a collective; () for all devices.

    Of a `send` between slices, one device of each exchange data, and slices count from 1. Forms
    else: {{0,1},{2,3}}; [2,2]<=[2,2]T(1,0); mesh['a'=2,'b'=2] {'b'}, groups along b, with
    device_ids=([2,2]T(1,0)) or without; and pairs.
    """
    if between := _SLICES.search(attributes):
        slices, chips = _numbers(between[1]), int(between[2]) + 1
        return tuple(tuple((each - 1) * chips + i for each in slices) for i in range(chips))
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
        if along := _MESH.match(text):
            mesh = {name: int(size) for name, size in _AXIS.findall(along[1])}
            names = re.findall(r"'(\w+)'", along[4])
            devices = np.arange(int(np.prod([*mesh.values()])))
            if along[2]:
                devices = devices.reshape(_numbers(along[2]))
            if along[3]:
                devices = devices.transpose(_numbers(along[3]))
            devices = devices.reshape([*mesh.values()])
            axes = [list(mesh).index(name) for name in names]
            last = np.moveaxis(devices, axes, range(-len(axes), 0))
            width = int(np.prod([mesh[name] for name in names]))
            return tuple(map(tuple, last.reshape(-1, width).tolist()))
        braces = re.match(r"\{(?:\{[\d,]*\},?)*\}", text)
        if braces:
            inner = (_numbers(group) for group in _BRACES.findall(braces[0][1:-1]))
            return tuple(group for group in inner if group)
        raise ValueError(f"Unknown form of device groups: {text[:100]}")
    return ()


def _numbers(text) -> tuple[int, ...]:
    return tuple(map(int, filter(None, text.split(","))))


def axes_of(groups: Sequence[Sequence[int]], mesh: Mapping[str, int]) -> tuple[str, ...]:
    """Returns the axes of a mesh (`Mesh.shape`) along which `Collective.groups` exchange data."""
    shape = tuple(mesh.values())
    if not groups:
        groups = [range(int(np.prod(shape)))]
    varied: set[str] = set()
    for group in groups:
        places = np.stack(np.unravel_index(np.asarray(group), shape))
        varied |= {name for name, row in zip(mesh, places, strict=True) if len(set(row)) > 1}
    return tuple(name for name in mesh if name in varied)


def across_slices(costs: Iterable[Collective], slices: Sequence[int]) -> dict[str, dict[str, int]]:
    """Returns {kind: {"count", "runs", "bytes"}} of collectives across slices.

    slices: the slice or node of each device, in the order of the mesh.
    """
    return _sums(
        each
        for each in costs
        if any(len({slices[i] for i in group}) > 1 for group in each.groups or [range(len(slices))])
    )


def collective_sums(costs: Iterable[Collective]) -> dict[str, dict[str, dict[str, int]]]:
    """Returns {"in_loops": {kind: {"count", "runs", "bytes"}}, "outside": the same} of a step."""
    costs = [*costs]
    return {
        "in_loops": _sums(each for each in costs if each.loops),
        "outside": _sums(each for each in costs if not each.loops),
    }


def _sums(costs):
    sums: dict[str, dict[str, int]] = {}
    for each in costs:
        entry = sums.setdefault(each.kind, {"count": 0, "runs": 0, "bytes": 0})
        entry["count"] += 1
        entry["runs"] += each.times
        entry["bytes"] += each.bytes * each.times
    return sums
