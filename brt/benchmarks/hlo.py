"""Reads the text of a compiled program: computations, loops, how often each instruction runs.

`compiled.as_text()` prints one instruction a line. These are pure functions of that text; what
they find is a program after the compiler's passes, so names and fusions differ between compilers.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

OPENING = {"(": ")", "{": "}", "[": "]"}
BYTES = {
    **dict.fromkeys(("pred", "s8", "u8", "f8e4m3fn", "f8e5m2", "f8e4m3", "f8e3m4"), 1),
    **dict.fromkeys(("s16", "u16", "f16", "bf16"), 2),
    **dict.fromkeys(("s32", "u32", "f32"), 4),
    **dict.fromkeys(("s64", "u64", "f64", "c64"), 8),
    "c128": 16,
}
"""Bytes of an element; types that are not listed hold no numbers (tokens, semaphores)."""

_HEADER = re.compile(r"(ENTRY )?%?([\w.\-]+)(?: \(.*)? \{$")
_NAMED = re.compile(r"\s+(ROOT )?%?([\w.\-]+) = ")
_OPCODE = re.compile(r"\s*([\w\-]+)\(")
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,<=]*)\]")
_CALLED = re.compile(r"\b(calls|to_apply|body|condition|branch_computations|called_computations)=")
_NAME = re.compile(r"%([\w.\-]+)")
_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')


class Instruction(NamedTuple):
    """One line of a computation.

    name, opcode: such as "fusion.3" and "fusion".
    shape: of the result, as printed, with its layout.
    operands: what stands between the brackets behind the opcode, as printed.
    attributes: the rest of the line.
    """

    name: str
    opcode: str
    shape: str
    operands: str
    attributes: str

    @property
    def op_name(self) -> str:
        """The path of named scopes and primitives that it was made of; "" without one."""
        found = _OP_NAME.search(self.attributes)
        return found[1] if found else ""

    @property
    def operand_names(self) -> list[str]:
        """Names of the instructions whose results it takes."""
        return _NAME.findall(self.operands)

    @property
    def called(self) -> dict[str, list[str]]:
        """Names of the computations it calls, by attribute: calls, to_apply, body, ..."""
        found = {}
        for match in _CALLED.finditer(self.attributes):
            start = match.end()
            if self.attributes[start : start + 1] == "{":
                text = self.attributes[start : _closing(self.attributes, start) + 1]
            else:
                text = re.match(r"[^\s,]*", self.attributes[start:])[0]  # type: ignore[index]
            found[match[1]] = [name.strip(" %{}") for name in text.split(",")]
        return found

    @property
    def backend(self) -> dict[str, Any]:
        """Its backend_config, what a compiler's backend noted; {} without any."""
        at = self.attributes.find("backend_config=")
        if at < 0:
            return {}
        start = at + len("backend_config=")
        if self.attributes[start] != "{":
            return {}
        try:
            return json.loads(self.attributes[start : _closing(self.attributes, start) + 1])
        except json.JSONDecodeError:
            return {}

    @property
    def cycles(self) -> int:
        """Cycles that the compiler estimates for one run; 0 where it says nothing."""
        backend = self.backend
        noted = backend.get("window_config", {}).get("estimated_cycles")
        return int(noted or backend.get("estimated_cycles", 0))


class Program(NamedTuple):
    """Computations by name, each a list of instructions in the order they are printed."""

    computations: dict[str, list[Instruction]]
    entry: str


class Visit(NamedTuple):
    """An instruction where the program reaches it.

    times: how often it runs in one run of the program.
    loops: names of the loops around it, from the outermost.
    fused: whether it is a part of a fusion, or of another computation that runs as one operation.
    """

    instruction: Instruction
    times: int
    loops: tuple[str, ...]
    fused: bool


def _closing(text, start):
    """Returns where the bracket at `start` is closed; brackets in quotes do not count."""
    depth = 0
    quoted = False
    at = start
    while at < len(text):
        letter = text[at]
        if quoted:
            if letter == "\\":
                at += 1
            elif letter == '"':
                quoted = False
        elif letter == '"':
            quoted = True
        elif letter in OPENING:
            depth += 1
        elif letter in ")}]":
            depth -= 1
            if not depth:
                return at
        at += 1
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
    """Reads the text of a compiled program.

    Raises:
        ValueError: no computation in it is marked as the entry.
    """
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


def array_bytes(shape: str) -> int:
    """Returns the bytes of a printed shape, of all its arrays if it is a tuple."""
    total = 0
    for kind, sizes in _ARRAY.findall(shape):
        count = 1
        for size in filter(None, sizes.split(",")):
            count *= int(size.lstrip("<="))
        total += count * BYTES.get(kind, 0)
    return total


def trip_count(program: Program, loop: Instruction) -> int | None:
    """Returns how often the body of a while loop runs, or None if the program does not say.

    The compiler notes it; otherwise it is the constant that the condition compares with.
    """
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


def visits(program: Program) -> Iterator[Visit]:
    """Yields every instruction that the program reaches, loops with their bodies.

    A loop whose trip count is unknown counts once. Of a conditional every branch is visited, as if
    it ran. What combines two numbers in a reduction is not visited.
    """
    yield from _visits(program, program.entry, 1, (), False)


def _visits(program, name, times, loops, fused) -> Iterator[Visit]:
    for instruction in program.computations[name]:
        yield Visit(instruction, times, loops, fused)
        called = instruction.called
        if instruction.opcode == "while":
            inner = times * (trip_count(program, instruction) or 1)
            inside = (*loops, instruction.name)
            for body in called["body"]:
                yield from _visits(program, body, inner, inside, fused)
        elif instruction.opcode in ("call", "conditional", "async-start"):
            for names in called.values():
                for each in names:
                    yield from _visits(program, each, times, loops, fused)
        else:
            for each in called.get("calls", ()):
                yield from _visits(program, each, times, loops, True)
