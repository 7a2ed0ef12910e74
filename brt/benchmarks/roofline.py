"""Floating-point operations and memory traffic of each kernel of a program compiled for a GPU.

A kernel is an operation that no fusion contains. Arrays in the card's cache count as memory
traffic, too.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from brt.benchmarks.hlo import Instruction, Program, array_bytes, arrays, bytes_of, visits
from brt.benchmarks.hlo_costs import KINDS

FREE = frozenset(
    (
        *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "add-dependency"),
        *("while", "conditional", "call", "after-all", "opt-barrier", "partition-id", "replica-id"),
        *("async-start", "async-update", "async-done", "copy-done", "send-done", "recv-done"),
    )
)
"""Operations that launch no kernel of their own."""

HIGHEST = "f32 highest"
ATTENTION, TRITON = "attention", "triton"

_SLICES = ("dynamic-slice", "slice", "gather")
_UPDATES = ("dynamic-update-slice", "scatter")
_CONTRACTED = re.compile(r'lhs_contracting_dim(?:s=\{|ensions":\[)([\d,"]*)')
_HIGHEST = re.compile(r'"?operand_precision"?[=:][{\[]"?highest|dot_f32_f32_f32', re.I)
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_FLOPS = re.compile(r'frontend_attributes={[^}]*\bflops="(\d+)"')
_BYTES = re.compile(r'frontend_attributes={[^}]*\bbytes="(\d+)"')
_WORKSPACE = ("s8", "u8")
"""Types of the buffer that a library's kernel takes as one of its results."""
_FORWARD, _BACKWARD = 4, 10
"""Operations of cuDNN's attention per element of (B, H, Q, J, K): two products, and five."""


class Kernel(NamedTuple):
    """A kernel of a program: figures of one run.

    flops: floating-point operations of matrix products, by the type of their operands; HIGHEST for
        float32 without TF32, ATTENTION for cuDNN's attention, whose masked part counts, TRITON for
        a Pallas kernel, which states its flops and bytes.
    bytes: read and written. target: of a custom call, whose products are only known for these and
        cuBLAS; "" for the compiler's own kernels.
    """

    flops: Mapping[str, int]
    bytes: int
    target: str = ""


def _target(instruction):
    found = _TARGET.search(instruction.attributes)
    return found[1] if found else ""


def _stated(figure, instruction):
    found = figure.search(instruction.attributes) if _target(instruction) else None
    return int(found[1]) if found else 0


class Kernels:
    """The kernels of a program, collectives left out.

    Of a sliced or gathered operand the result counts as bytes, and of an array that is updated
    in-place the update. A fusion computes only the elements that its result needs.
    """

    def __init__(self, program: Program):
        self.program = program
        self._by_name = program.instructions()
        self._users: dict[str, list[Instruction]] = {}
        self._shares: dict[str, float] = {}
        self._found: dict[str, Kernel] = {}
        for instruction in self._by_name.values():
            for name in dict.fromkeys(instruction.operand_names):
                self._users.setdefault(name, []).append(instruction)

    def of(self, instruction: Instruction) -> Kernel | None:
        opcode = instruction.opcode.removesuffix("-start").removesuffix("-done")
        if opcode in KINDS or instruction.opcode in FREE:
            return None
        if instruction.name not in self._found:
            kernel = Kernel(
                self._products(instruction), self._traffic(instruction), _target(instruction)
            )
            self._found[instruction.name] = kernel
        return self._found[instruction.name]

    def runs(self) -> Iterator[tuple[Kernel, int]]:
        """Yields each kernel and its runs in one run of the program."""
        for instruction, times, _, fused in visits(self.program):
            if not fused and (kernel := self.of(instruction)):
                yield kernel, times

    def _fused(self, instruction):
        names = instruction.called.get("calls", ())
        return self.program.computations[names[0]] if names else []

    def _products(self, instruction):
        flops: Counter[str] = Counter()
        for inner in self._fused(instruction):
            flops.update(self._products(inner))
        target = _target(instruction)
        if instruction.opcode == "dot" or target.startswith("__cublas$"):
            left, _ = self._arrays(instruction)[:2]
            (_, result), *_ = arrays(instruction.shape)
            contracted = _CONTRACTED.search(instruction.attributes)
            axes = re.findall(r"\d+", contracted[1] if contracted else "")
            depth = math.prod(left[1][int(axis)] for axis in axes)
            exact = left[0] == "f32" and _HIGHEST.search(instruction.attributes)
            flops[HIGHEST if exact else left[0]] += 2 * depth * math.prod(result)
        elif target.startswith("__cudnn$fmha"):
            (_, (B, Q, H, K)), (_, (_, J, _, _)) = self._arrays(instruction)[:2]
            number = _BACKWARD if target.endswith("Backward") else _FORWARD
            flops[ATTENTION] += number * B * H * Q * J * K
        elif stated := _stated(_FLOPS, instruction):
            flops[TRITON] += stated
        return flops

    def _arrays(self, instruction):
        names = instruction.operand_names
        return [array for name in names for array in arrays(self._by_name[name].shape)]

    def _traffic(self, instruction):
        if stated := _stated(_BYTES, instruction):
            return stated
        lines = self._fused(instruction)
        if not lines:
            names = dict.fromkeys(instruction.operand_names)
            read = (self._bytes(name) * self._share_for(instruction, name) for name in names)
            return round(sum(read)) + self._written(instruction)
        root = lines[-1]
        read = (
            self._bytes(line.name) * self._share(line.name, root.name)
            for line in lines
            if line.opcode == "parameter"
        )
        return round(sum(read)) + self._written(root)

    def _bytes(self, name):
        return array_bytes(self._by_name[name].shape) if name in self._by_name else 0

    def _share(self, name, root):
        """Returns the share of an array's elements that a fusion with this root reads."""
        if name not in self._shares:
            shares = (
                self._share(user.name, root) * self._share_for(user, name)
                for user in self._users.get(name, ())
            )
            self._shares[name] = 1.0 if name == root else min(1.0, sum(shares))
        return self._shares[name]

    def _share_for(self, user, name):
        number = user.operand_names.index(name)
        if number == 0 and user.opcode in _SLICES:
            return min(1.0, array_bytes(user.shape) / max(self._bytes(name), 1))
        if number == 0 and user.opcode in _UPDATES:
            return 0.0
        lines = self._fused(user)  # of a fusion inside of a fusion
        inputs = [line for line in lines if line.opcode == "parameter"]
        for line in inputs:
            if int(line.operands) == number:
                return self._share(line.name, lines[-1].name)
        return 1.0

    def _written(self, result):
        names = result.operand_names
        match result.opcode:
            case "tuple":
                return sum(self._written(self._by_name[name]) for name in names)
            case "bitcast":
                return self._written(self._by_name[names[0]])
            case "parameter":
                return 0
            case "fusion":
                return self._written(self._fused(result)[-1])
            case "dynamic-update-slice":
                return self._bytes(names[1])
            case "scatter":  # adds to a part of its first operand
                return 2 * self._bytes(names[-1])
            case "custom-call":
                return bytes_of(x for x in arrays(result.shape) if x[0] not in _WORKSPACE)
        return array_bytes(result.shape)
