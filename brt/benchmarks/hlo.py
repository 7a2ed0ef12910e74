"""Parses the text of a compiled program (`compiled.as_text()`, one instruction a line)."""

import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

BYTES = {
    **dict.fromkeys(("pred", "s8", "u8", "f8e4m3fn", "f8e5m2", "f8e4m3", "f8e3m4"), 1),
    **dict.fromkeys(("s16", "u16", "f16", "bf16"), 2),
    **dict.fromkeys(("s32", "u32", "f32"), 4),
    **dict.fromkeys(("s64", "u64", "f64", "c64"), 8),
    "c128": 16,
}
"""Bytes of an element. Other types (tokens, semaphores) have no numbers."""

_HEADER = re.compile(r"(ENTRY )?%?([\w.\-]+)(?: \(.*)? \{$")
_NAMED = re.compile(r"\s+(ROOT )?%?([\w.\-]+) = ")
_OPCODE = re.compile(r"\s*([\w\-]+)\(")
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,<=]*)\]")
_CALLED = re.compile(r"\b(calls|to_apply|body|condition|branch_computations|called_computations)=")
_NAME = re.compile(r"%([\w.\-]+)")
_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"|[({\[]|[)}\]]')
_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')


class Instruction(NamedTuple):
    """One line of a computation: `name = shape opcode(operands), attributes`, as printed."""

    name: str
    opcode: str
    shape: str
    operands: str
    attributes: str

    @property
    def op_name(self) -> str:
        match = _OP_NAME.search(self.attributes)
        return match[1] if match else ""

    @property
    def operand_names(self) -> list[str]:
        return _NAME.findall(self.operands)

    @property
    def called(self) -> dict[str, list[str]]:
        """Names of called computations by attribute: calls, to_apply, body, ..."""
        names = {}
        for match in _CALLED.finditer(self.attributes):
            start = match.end()
            if self.attributes[start : start + 1] == "{":
                text = self.attributes[start : _closing(self.attributes, start) + 1]
            else:
                text = re.match(r"[^\s,]*", self.attributes[start:])[0]  # type: ignore[index]
            names[match[1]] = [name.strip(" %{}") for name in text.split(",")]
        return names

    @property
    def backend(self) -> dict[str, Any]:
        start = self.attributes.find("backend_config={") + len("backend_config=")
        if start < len("backend_config="):
            return {}
        try:
            return json.loads(self.attributes[start : _closing(self.attributes, start) + 1])
        except json.JSONDecodeError:
            return {}

    @property
    def cycles(self) -> int:
        backend = self.backend
        noted = backend.get("window_config", {}).get("estimated_cycles")
        return int(noted or backend.get("estimated_cycles", 0))


class Program(NamedTuple):
    computations: dict[str, list[Instruction]]
    entry: str

    def instructions(self) -> dict[str, Instruction]:
        return {each.name: each for lines in self.computations.values() for each in lines}


class Visit(NamedTuple):
    """An instruction in context.

    times: runs in one run of the program. loops: names of the enclosing loops, the outermost first.
    fused: whether it is part of a fusion or another single operation.
    """

    instruction: Instruction
    times: int
    loops: tuple[str, ...]
    fused: bool


def _closing(text, start):
    depth = 0
    for match in _BRACKET.finditer(text, start):
        if match[0] in "({[":
            depth += 1
        elif match[0] in ")}]":
            depth -= 1
            if not depth:
                return match.start()
    raise ValueError(f"A bracket of the program is never closed: {text[start : start + 80]}")


def _instruction(line) -> Instruction | None:
    named = _NAMED.match(line)
    if not named:
        return None
    rest = line[named.end() :]
    end = _closing(rest, 0) + 1 if rest.startswith("(") else rest.find(" ")
    opcode = _OPCODE.match(rest, end)
    if not opcode:
        return None
    start = opcode.end() - 1
    stop = _closing(rest, start)
    return Instruction(
        named[2], opcode[1], rest[:end], rest[start + 1 : stop], rest[stop + 1 :].lstrip(", ")
    )


def parse(text: str) -> Program:
    computations: dict[str, list[Instruction]] = {}
    entry = None
    current: list[Instruction] = []
    for line in text.splitlines():
        if header := _HEADER.match(line):
            current = computations[header[2]] = []
            entry = header[2] if header[1] else entry
        elif instruction := _instruction(line):
            current.append(instruction)
    if entry is None:
        raise ValueError("The text is no compiled program: no computation is its ENTRY.")
    return Program(computations, entry)


def arrays(shape: str) -> list[tuple[str, tuple[int, ...]]]:
    """Returns pairs of element type and sizes, such as ("f32", (8, 16))."""
    return [
        (kind, tuple(int(size.lstrip("<=")) for size in sizes.split(",") if size))
        for kind, sizes in _ARRAY.findall(shape)
    ]


def bytes_of(found: Iterable[tuple[str, tuple[int, ...]]]) -> int:
    return sum(math.prod(sizes) * BYTES.get(kind, 0) for kind, sizes in found)


def array_bytes(shape: str) -> int:
    return bytes_of(arrays(shape))


def trip_count(program: Program, loop: Instruction) -> int | None:
    """Returns the trip count of a while loop, or the constant of its condition, or None."""
    noted = loop.backend.get("known_trip_count", {}).get("n")
    if noted is not None:
        return int(noted)
    (condition,) = loop.called["condition"]
    constants = [
        int(each.operands)
        for each in program.computations[condition]
        if each.opcode == "constant" and re.fullmatch(r"[su](32|64)\[\]", each.shape.split("{")[0])
    ]
    return constants[0] if len(constants) == 1 else None


def visits(
    program: Program,
    name: str | None = None,
    times: int = 1,
    loops: tuple[str, ...] = (),
    fused: bool = False,
) -> Iterator[Visit]:
    """Yields every reachable instruction, except the functions that reductions apply.

    A loop with unknown trip count counts once; all branches of a conditional are visited. name: of
    the first computation; None: the entry.
    """
    for instruction in program.computations[name or program.entry]:
        yield Visit(instruction, times, loops, fused)
        called = instruction.called
        if instruction.opcode == "while":
            inner = times * (trip_count(program, instruction) or 1)
            for body in called["body"]:
                yield from visits(program, body, inner, (*loops, instruction.name), fused)
        elif instruction.opcode in ("call", "conditional", "async-start"):
            for each in itertools.chain(*called.values()):
                yield from visits(program, each, times, loops, fused)
        else:
            for each in called.get("calls", ()):
                yield from visits(program, each, times, loops, True)
