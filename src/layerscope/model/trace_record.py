"""The record of one trace: operations, module calls, parameters. Plain data, no framework.

Operations are named tuples because there are thousands: a frozen dataclass takes ten times as long to create.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, Protocol, runtime_checkable

Snippet = tuple[int, tuple[str, ...]]  # number of the first line, and the lines
Code = Mapping[tuple[str, int], Snippet]  # file and line → the lines around it
#: What determines the layer of an operation: function, position, parameters, site, path of its module, arguments,
#: parents, buffers. The site is None for an input, a constant or an output, which no call computed.
Outline = tuple[
    str, int, tuple[str, ...], int | None, str, tuple[tuple[str, str], ...], tuple[int, ...], tuple[str, ...]
]


class Role(str, Enum):
    """Role of a node of the graph."""

    INPUT = "input"
    OUTPUT = "output"
    CONSTANT = "constant"  # its creation was not observed: an attribute, another thread
    OPERATION = "operation"


class Parent(NamedTuple):
    """One tensor argument of an operation."""

    argument: str  # "0", "mask", "0.2" for the third tensor of a list passed as first argument
    operation: int


class StackFrame(NamedTuple):
    """One line of the call stack."""

    file: str
    line: int
    function: str


class CodeFrame(NamedTuple):
    """One line of the call stack, with the code around it."""

    file: str
    line: int
    function: str
    first: int  # line number of the first line
    lines: tuple[str, ...]  # empty if the file cannot be read

    def __str__(self) -> str:
        numbered = enumerate(self.lines, self.first)
        code = [f"{'>' if number == self.line else ' '} {number:5} {text}".rstrip() for number, text in numbered]
        return "\n".join([f"{self.file}:{self.line} in {self.function}", *code])


class Operation(NamedTuple):
    """One tensor of the forward pass and how it was computed. A call with several results is several operations."""

    index: int  # type: ignore[assignment]  # tuples have a method of that name
    role: Role
    function: str  # "conv2d"; "add" for `+`, `add_` and `__radd__` alike
    parents: tuple[Parent, ...]
    arguments: dict[str, str]  # arguments that are not tensors, as text
    parameters: tuple[str, ...]  # parameters it used
    buffers: tuple[str, ...]
    call: int  # index of the enclosing module call
    site: int  # equal for operations on the same line with the same call stack
    frames: tuple[StackFrame, ...]  # innermost first, up to the forward of its module
    lead: int  # index of the first operation of the same function call
    position: int  # index among the results of the call
    shape: tuple[int, ...]
    dtype: str
    device: str
    size_bytes: int
    grad_fn: str | None
    elapsed_s: float
    flops: int | None
    in_place: bool
    is_random: bool
    grad_mode: bool
    autocast: str | None
    written: tuple[str, ...] = ()  # buffers and parameters that the call wrote, through any view of their memory


@runtime_checkable
class Outlined(Protocol):
    """Operations that provide what layers depend on without building each record."""

    def outlines(self) -> Iterator[Outline]:
        """The outline of each operation, in order."""
        ...


@runtime_checkable
class Columnar(Protocol):
    """Operations stored as columns: reading one field of all builds no record."""

    def column(self, name: str) -> Sequence[Any]:
        """One field of all operations; for `parents` only the indices of the operations."""
        ...


def field_of_all(operations: Sequence[Operation], name: str) -> Sequence[Any]:  # Any: the type of the field
    """One field of all operations; for `parents` only the indices of the operations."""
    if isinstance(operations, Columnar):
        return operations.column(name)
    if name == "parents":
        return [[parent.operation for parent in operation.parents] for operation in operations]
    return [getattr(operation, name) for operation in operations]


class ModuleCallRecord(NamedTuple):
    """One call of one module."""

    path: str  # "" for the model itself
    number: int  # 1 for the module's first call
    parent: int | None  # index of the enclosing call
    class_name: str
    training: bool
    frames: tuple[StackFrame, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    elapsed_s: float


class ParameterRecord(NamedTuple):
    """One parameter of the model."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    size_bytes: int
    trainable: bool


@dataclass(frozen=True, slots=True)
class TraceRecord:
    """Everything recorded of one forward pass, except the values."""

    model: str  # name of the model's class, or of the function
    operations: Sequence[Operation]
    calls: tuple[ModuleCallRecord, ...]
    parameters: tuple[ParameterRecord, ...]
    modules: tuple[tuple[str, str], ...]  # path and class of every module, called or not
    elapsed_s: float
    seed: int | None
    failure: str | None = None  # the exception that ended the forward
    stale: frozenset[int] = field(default_factory=frozenset)  # operations whose kept value may have changed
