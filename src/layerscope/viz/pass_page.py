"""A trace as the page shows it: the placed graph, one operation with all that is known of it, search results."""

from __future__ import annotations

import math
from dataclasses import dataclass

from layerscope.operations import Operation, PassRecord
from layerscope.query.blocks import BlockRole, Nesting
from layerscope.query.layers import Naming
from layerscope.records import Floats
from layerscope.viz.nestedgraph import GroupOrder
from layerscope.viz.pass_text import size


@dataclass(frozen=True, slots=True)
class PassNumbers:
    """A field of operations, such as their time, by part of the graph."""

    name: str
    parts: Floats
    values: Floats


@dataclass(frozen=True, slots=True)
class Crumb:
    """One of the modules around something."""

    id: int
    title: str


@dataclass(frozen=True, slots=True)
class PassParts:
    """Some parts of the graph of a trace: what `NestedGraph` says of each."""

    parts: tuple[int, ...]  # their numbers
    parents: tuple[int, ...]
    roles: tuple[str, ...]
    names: tuple[str, ...]
    details: tuple[str, ...]
    widths: tuple[int, ...]
    title_widths: tuple[int, ...]
    sites: tuple[str, ...]
    facts: tuple[str, ...]
    operations: tuple[int, ...]  # the first one of each; of a module the one whose tensor it gives


@dataclass(frozen=True, slots=True)
class PassGroups:
    """What is in some groups, beside the modules that are known already, and the order of all that is in them."""

    operations: PassParts
    groups: tuple[GroupOrder, ...]


@dataclass(frozen=True, slots=True)
class PassPicture:
    """The graph of a trace: its modules, and what is in those that are open at first, or in all if they are few."""

    title: str
    count: int  # of all parts
    opened: tuple[int, ...]
    modules: PassParts
    inside: PassGroups


@dataclass(frozen=True, slots=True)
class OperationLink:
    """An operation that another one speaks of."""

    operation: int
    label: str
    module: str
    shape: str
    argument: str  # as which argument it was taken; "" where that is no question


@dataclass(frozen=True, slots=True)
class Fact:
    """Something known of an operation, in words."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class StackLine:
    """A line of the call stack, with the code around it where that was kept."""

    file: str
    line: int
    function: str
    first_line: int
    code: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OperationView:
    """Everything known of one operation but its value."""

    operation: int
    operations: int  # in the whole trace
    label: str
    function: str
    role: str
    module: str
    module_class: str
    site: str  # of the module call, as in the histories of the run
    shape: tuple[int, ...]
    dtype: str
    facts: tuple[Fact, ...]
    arguments: tuple[Fact, ...]
    parents: tuple[OperationLink, ...]
    children: tuple[OperationLink, ...]
    passes: tuple[OperationLink, ...]  # of its layer
    stack: tuple[StackLine, ...]
    part: int  # of the graph
    around: tuple[Crumb, ...]  # parts that must be open for it to be seen
    has_value: bool
    has_gradient: bool
    is_stale: bool


@dataclass(frozen=True, slots=True)
class OperationList:
    """Operations that a search found."""

    found: int
    operations: tuple[OperationLink, ...]


def link(record: PassRecord, naming: Naming, index: int, argument: str = "") -> OperationLink:
    """An operation in a list."""
    op = record.operations[index]
    return OperationLink(index, naming.label(index), record.calls[op.call].path, shape_text(op.shape), argument)


def shape_text(shape: tuple[int, ...]) -> str:
    """A shape as it stands on nodes.

    >>> shape_text((2, 3)), shape_text(())
    ('2×3', 'scalar')
    """
    return "×".join(map(str, shape)) or "scalar"


def facts(record: PassRecord, op: Operation) -> tuple[Fact, ...]:
    """What there is to say of an operation, the most important first."""
    used = [parameter for parameter in record.parameters if parameter.name in op.parameters]
    elements = sum(math.prod(parameter.shape) for parameter in used)
    named = ", ".join(f"{parameter.name} {shape_text(parameter.shape)}" for parameter in used)
    found = [
        ("Time", f"{op.elapsed_s * 1e6:,.1f} µs" if op.elapsed_s else ""),
        ("Memory", size(op.size_bytes)),
        ("FLOPs", f"{op.flops:,}" if op.flops else ""),
        ("Parameters", f"{named} ({elements:,} elements)" if used else ""),
        ("Buffers", ", ".join(op.buffers)),
        ("Gradient by", op.grad_fn or ""),
        ("Device", op.device),
        ("Autocast", op.autocast or ""),
        ("In place", "yes" if op.in_place else ""),
        ("Random", "yes" if op.is_random else ""),
    ]
    return tuple(Fact(name, text) for name, text in found if text)


def crumbs(nesting: Nesting, block: int) -> tuple[Crumb, ...]:
    """The blocks around a block and itself, from the whole on."""

    def title(at: int) -> str:
        found = nesting.blocks[at]
        if not at:
            return nesting.record.model
        if found.role is BlockRole.SECTION:
            return f"operations {found.operations[0]}–{found.operations[-1]}"
        return found.path

    return tuple(Crumb(at, title(at)) for at in nesting.chain(block))
