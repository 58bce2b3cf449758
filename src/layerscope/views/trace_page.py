"""A trace at a glance: how much of everything there is, and which operations have the most of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from layerscope.graph.layers import Naming
from layerscope.graph.module_blocks import MODEL
from layerscope.model.records import Floats, call_site
from layerscope.model.text import quantity, shape_text
from layerscope.model.trace_record import Operation, TraceRecord, field_of_all
from layerscope.views.trace_graph import Crumb
from layerscope.views.wording import FIELDS, amounts, elements_of

MOST_RANKED = 10


@dataclass(frozen=True, slots=True)
class TraceRanking:
    """The operations with the most of a field, such as their time."""

    field: str
    total: float  # of all operations
    operations: tuple[OperationLink, ...]
    values: Floats


@dataclass(frozen=True, slots=True)
class TraceOverview:
    """What a trace is made of."""

    facts: tuple[Fact, ...]
    rankings: tuple[TraceRanking, ...]


def overview(record: TraceRecord, naming: Naming) -> TraceOverview:
    """A trace at a glance; of a field that nothing is known of there is no ranking."""
    rankings = [_ranking(record, naming, field) for field in FIELDS]
    flops = next(ranking.total for ranking in rankings if ranking.field == "flops")
    computed = next(ranking.total for ranking in rankings if ranking.field == "size_bytes")
    elements = elements_of(record, {parameter.name for parameter in record.parameters})
    calls = sum(bool(call.class_name) for call in record.calls)  # the first is what was traced, a module or not
    held = quantity(sum(parameter.size_bytes for parameter in record.parameters), "B")
    found = (
        ("Operations", f"{len(record.operations):,} in {calls:,} calls of modules"),
        ("Parameters", f"{elements:,} elements ({held})" if elements else ""),
        ("FLOPs", f"{flops:,.0f}" if flops else ""),
        ("Time", f"{quantity(record.elapsed_s, 's')}, tracing included"),
        ("Results", f"{quantity(computed, 'B')} in all, if none were freed"),
        ("Seed", "" if record.seed is None else str(record.seed)),
    )
    return TraceOverview(
        facts=tuple(Fact(name, text) for name, text in found if text),
        rankings=tuple(ranking for ranking in rankings if ranking.operations),
    )


def _ranking(record: TraceRecord, naming: Naming, field: str) -> TraceRanking:
    values = amounts(record.operations, field)
    most = np.argsort(-np.nan_to_num(values), kind="stable")[:MOST_RANKED]
    most = most[np.nan_to_num(values[most]) > 0]
    links = tuple(link(record, naming, at) for at in most.tolist())
    return TraceRanking(field, float(np.nansum(values)), links, values[most])


def flops_of_calls(record: TraceRecord) -> dict[str, int]:
    """The FLOPs inside every call of a pass, by the site that it is when the model is watched."""
    of_calls = [0] * len(record.calls)
    counted = np.nan_to_num(amounts(record.operations, "flops")).astype(np.int64).tolist()
    for flops, inside in zip(counted, field_of_all(record.operations, "call"), strict=True):
        call: int | None = inside if flops else None
        while call is not None:
            of_calls[call] += flops
            call = record.calls[call].parent
    calls = zip(record.calls, of_calls, strict=True)
    return {call_site(call.path or MODEL, max(call.number, 1)): flops for call, flops in calls}


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


def link(record: TraceRecord, naming: Naming, index: int, argument: str = "") -> OperationLink:
    """An operation in a list."""
    op = record.operations[index]
    return OperationLink(index, naming.label(index), record.calls[op.call].path, shape_text(op.shape), argument)


def facts(record: TraceRecord, op: Operation) -> tuple[Fact, ...]:
    """What there is to say of an operation, the most important first."""
    used = [parameter for parameter in record.parameters if parameter.name in op.parameters]
    elements = elements_of(record, op.parameters)
    named = ", ".join(f"{parameter.name} {shape_text(parameter.shape)}" for parameter in used)
    found = [
        ("Time", quantity(op.elapsed_s, "s") if op.elapsed_s else ""),
        ("Memory", quantity(op.size_bytes, "B")),
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
