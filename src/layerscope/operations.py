"""The record of one pass: operations, module calls, parameters. Plain data, no framework."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class Role(str, Enum):
    """What a node of the graph is."""

    INPUT = "input"
    OUTPUT = "output"
    CONSTANT = "constant"  # came from outside the pass: an attribute, another thread
    OPERATION = "operation"


@dataclass(frozen=True, slots=True)
class Parent:
    """One tensor argument of an operation."""

    argument: str  # "0", "mask", "0.2" for the third tensor of a list in first place
    operation: int


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of the call stack."""

    file: str
    line: int
    function: str


@dataclass(frozen=True, slots=True)
class Operation:
    """One tensor of the pass and how it was computed. A call with several results is several operations."""

    index: int
    role: Role
    function: str  # "conv2d"; "add" for `+`, `add_` and `__radd__` alike
    parents: tuple[Parent, ...]
    arguments: dict[str, str]  # those that are no tensors, as text
    parameters: tuple[str, ...]
    buffers: tuple[str, ...]
    call: int  # index of the module call it happened in
    site: int  # equal for operations of the same place in the code, reached the same way
    frames: tuple[Frame, ...]  # innermost first, as far as the forward of its module
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


@dataclass(frozen=True, slots=True)
class ModuleCallRecord:
    """One call of one module."""

    path: str  # "" for the model itself
    number: int  # 1 for the module's first call
    parent: int | None  # the call it happened in
    class_name: str
    training: bool
    frames: tuple[Frame, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class ParameterRecord:
    """One parameter of the model."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    size_bytes: int
    trainable: bool


@dataclass(frozen=True, slots=True)
class PassRecord:
    """Everything known of one pass but the values."""

    model: str  # name of the model's class, or of the function
    operations: tuple[Operation, ...]
    calls: tuple[ModuleCallRecord, ...]
    parameters: tuple[ParameterRecord, ...]
    modules: tuple[tuple[str, str], ...]  # path and class of every module, called or not
    elapsed_s: float
    seed: int | None
    failure: str | None = None  # the error that ended the pass
    stale: frozenset[int] = field(default_factory=frozenset)  # operations whose kept value is not proven current
