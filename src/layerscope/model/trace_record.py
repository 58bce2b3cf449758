"""The record of one pass: operations, module calls, parameters. Plain data, no framework.

Named tuples, since there are thousands: a frozen dataclass of so many fields takes ten times as long to make.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, Protocol, runtime_checkable

Snippet = tuple[int, tuple[str, ...]]  # number of the first line, and the lines
Code = Mapping[tuple[str, int], Snippet]  # file and line → the lines around it
#: What tells the layer of an operation: function, position, parameters, site, path of its module, arguments, parents,
#: buffers. The site is None where no call gave the tensor: an input, a constant, an output.
Outline = tuple[
    str, int, tuple[str, ...], int | None, str, tuple[tuple[str, str], ...], tuple[int, ...], tuple[str, ...]
]


class Role(str, Enum):
    """What a node of the graph is."""

    INPUT = "input"
    OUTPUT = "output"
    CONSTANT = "constant"  # its making was not seen: an attribute, another thread
    OPERATION = "operation"


class Parent(NamedTuple):
    """One tensor argument of an operation."""

    argument: str  # "0", "mask", "0.2" for the third tensor of a list in first place
    operation: int


class StackFrame(NamedTuple):
    """One line of the call stack."""

    file: str
    line: int
    function: str


class CodeFrame(NamedTuple):
    """One line of the call stack, and the code around it."""

    file: str
    line: int
    function: str
    first: int  # number of the first of the lines
    lines: tuple[str, ...]  # none where the file cannot be read

    def __str__(self) -> str:
        numbered = enumerate(self.lines, self.first)
        code = [f"{'>' if number == self.line else ' '} {number:5} {text}".rstrip() for number, text in numbered]
        return "\n".join([f"{self.file}:{self.line} in {self.function}", *code])


class Operation(NamedTuple):
    """One tensor of the pass and how it was computed. A call with several results is several operations."""

    index: int  # type: ignore[assignment]  # a tuple has a method of that name
    role: Role
    function: str  # "conv2d"; "add" for `+`, `add_` and `__radd__` alike
    parents: tuple[Parent, ...]
    arguments: dict[str, str]  # those that are no tensors, as text
    parameters: tuple[str, ...]  # those it took
    buffers: tuple[str, ...]
    call: int  # index of the module call it happened in
    site: int  # equal for operations of the same place in the code, reached the same way
    frames: tuple[StackFrame, ...]  # innermost first, as far as the forward of its module
    lead: int  # the first operation of the same function call
    position: int  # which of the call's results
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
    written: tuple[str, ...] = ()  # buffers and parameters that its call wrote, by whatever view of their memory


@runtime_checkable
class Outlined(Protocol):
    """Operations that tell what layers are made from without being put into words one by one."""

    def outlines(self) -> Iterator[Outline]:
        """The outline of each operation, in order."""
        ...


@runtime_checkable
class Columnar(Protocol):
    """Operations whose fields are columns: to look at one field of all, no operation has to be put together."""

    def column(self, name: str) -> Sequence[Any]:
        """One field of all operations; of `parents` the operations alone."""
        ...


def field_of_all(operations: Sequence[Operation], name: str) -> Sequence[Any]:  # Any: whatever the field holds
    """One field of all operations; of `parents` the operations alone."""
    if isinstance(operations, Columnar):
        return operations.column(name)
    if name == "parents":
        return [[parent.operation for parent in operation.parents] for operation in operations]
    return [getattr(operation, name) for operation in operations]


class ModuleCallRecord(NamedTuple):
    """One call of one module."""

    path: str  # "" for the model itself
    number: int  # 1 for the module's first call
    parent: int | None  # the call it happened in
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
    """Everything known of one pass but the values."""

    model: str  # name of the model's class, or of the function
    operations: Sequence[Operation]
    calls: tuple[ModuleCallRecord, ...]
    parameters: tuple[ParameterRecord, ...]
    modules: tuple[tuple[str, str], ...]  # path and class of every module, called or not
    elapsed_s: float
    seed: int | None
    failure: str | None = None  # the error that ended the pass
    stale: frozenset[int] = field(default_factory=frozenset)  # operations whose kept value is not proven current
