"""The traces of a run: their list, what each is made of, its operations and their values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from layerscope.errors import FormatError, SelectError
from layerscope.graph.layers import Naming, name_layers
from layerscope.graph.module_blocks import MODEL
from layerscope.graph.trace_blocks import TraceBlocks
from layerscope.model.records import Floats, call_site
from layerscope.model.text import quantity, shape_text
from layerscope.model.trace_record import Operation, TraceRecord, field_of_all
from layerscope.query.trace_tables import stack_of
from layerscope.store.traces import (
    GRADIENTS,
    VALUES,
    StoredTensors,
    TraceHead,
    read_head,
    read_outline,
    tensors_of,
    trace_folders,
    trace_revision,
    without_collection,
)
from layerscope.views.open_run import OpenRun
from layerscope.views.trace_graph import Crumb, TraceGraph, TraceGroups, TraceNumbers, TracePicture, crumbs
from layerscope.views.values import ValueRequest, ValueView, coarse, cut, value_view
from layerscope.views.wording import FIELDS, amounts, elements_of

MOST_RANKED = 10
FEW = 10_000  # operations of a trace of which both graphs are cached
MOST_FOUND, MOST_LISTED, MOST_LINKS = 60, 20_000, 200
FILES = {"value": VALUES, "gradient": GRADIENTS}


@dataclass(frozen=True, slots=True)
class TraceEntry:
    """One line of the list of traces."""

    name: str
    model: str
    operations: int
    values: int  # operations whose value was kept
    gradients: int
    elapsed_s: float
    failure: str | None
    step: int | None


@dataclass(frozen=True, slots=True)
class TraceList:
    """The traces saved in a run, oldest first."""

    run: str
    traces: tuple[TraceEntry, ...]


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
    size = quantity(sum(parameter.size_bytes for parameter in record.parameters), "B")
    facts = (
        ("Operations", f"{len(record.operations):,} in {calls:,} module calls"),
        ("Parameters", f"{elements:,} elements ({size})" if elements else ""),
        ("FLOPs", f"{flops:,.0f}" if flops else ""),
        ("Time", f"{quantity(record.elapsed_s, 's')}, tracing included"),
        ("Results", f"{quantity(computed, 'B')} in all, if nothing is freed"),
        ("Seed", "" if record.seed is None else str(record.seed)),
    )
    return TraceOverview(
        facts=tuple(Fact(name, text) for name, text in facts if text),
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
    """Operations that match a search."""

    matches: int  # of which the first are listed
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
    pairs = [
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
    return tuple(Fact(name, text) for name, text in pairs if text)


@dataclass
class OpenTrace:
    """A trace that is being looked at; it never changes."""

    folder: Path
    head: TraceHead
    graphs: dict[bool, TraceGraph] = field(default_factory=dict)

    @cached_property
    def naming(self) -> Naming:
        """Layers, passes and labels."""
        return name_layers(self.head.record)

    @cached_property
    def overview(self) -> TraceOverview:
        """What it is made of, and the operations that take the most."""
        return overview(self.head.record, self.naming)

    @cached_property
    def tensors(self) -> dict[str, StoredTensors]:
        """The values and gradients that were kept."""
        return {what: tensors_of(self.folder, name, self.head) for what, name in FILES.items()}

    def graph(self, *, rolled: bool) -> TraceGraph:
        """Its graph: passes of a layer as one node, or each as its own."""
        if rolled not in self.graphs:
            if len(self.head.record.operations) > FEW:
                self.graphs.clear()
            self.graphs[rolled] = TraceGraph(TraceBlocks(self.head.record, self.naming, rolled=rolled))
        return self.graphs[rolled]

    def operation(self, index: int) -> Operation:
        """One operation by its number."""
        count = len(self.head.record.operations)
        if not 0 <= index < count:
            raise SelectError(f"The trace has no operation {index}. It has {count:,} of them, numbered from 0.")
        return self.head.record.operations[index]


def trace_list(run: OpenRun) -> TraceList:
    """The traces of the run; one that cannot be read has the reason as its failure."""

    def entry(folder: Path) -> TraceEntry:
        try:
            return run.cache.trace_entries.get(
                _key(folder), lambda: TraceEntry(name=folder.name, **asdict(read_outline(folder)))
            )
        except FormatError as error:
            return TraceEntry(folder.name, "", 0, 0, 0, 0.0, str(error), None)

    return TraceList(run.name, tuple(map(entry, trace_folders(run.reader.folder))))


def open_trace(run: OpenRun, name: str) -> OpenTrace:
    """The trace of that name, among those that are there."""
    folders = {folder.name: folder for folder in trace_folders(run.reader.folder)}
    if name not in folders:
        raise SelectError(f"The run has no trace {name[:40]!r}. It has {len(folders)} of them.")
    folder = folders[name]
    return run.cache.traces.get(_key(folder), lambda: OpenTrace(folder, read_head(folder)))


def _key(folder: Path) -> tuple[str, int]:
    return str(folder), trace_revision(folder)


def trace_picture(trace: OpenTrace, *, rolled: bool = True) -> TracePicture:
    """The modules of the graph, and what is in those that are open at first, or in all if they are few."""
    with without_collection():
        return trace.graph(rolled=rolled).view()


def trace_groups(trace: OpenTrace, groups: Iterable[int], *, rolled: bool = True) -> TraceGroups:
    """What is in some groups of the graph, given by their numbers."""
    graph = trace.graph(rolled=rolled)
    return graph.groups([group for group in groups if graph.has_group(group)])


def trace_numbers(trace: OpenTrace, field: str, *, rolled: bool = True) -> TraceNumbers:
    """A field of operations by part of the graph."""
    return TraceNumbers(field, *trace.graph(rolled=rolled).numbers(field))


def operation_view(trace: OpenTrace, index: int, *, rolled: bool = True) -> OperationView:
    """Everything known of one operation but its value."""
    op, record, naming, graph = trace.operation(index), trace.head.record, trace.naming, trace.graph(rolled=rolled)
    call, part = record.calls[op.call], graph.tree.leaf[index]
    passes = naming.members[naming.layer[index]][:MOST_LINKS]
    stack = stack_of(record, index, trace.head.code)
    return OperationView(
        operation=index,
        operations=len(record.operations),
        label=naming.label(index),
        function=op.function,
        role=op.role.value,
        module=call.path,
        module_class=call.class_name,
        site=call_site(call.path, call.number),
        shape=op.shape,
        dtype=op.dtype,
        facts=facts(record, op),
        arguments=tuple(Fact(key, text) for key, text in op.arguments.items()),
        parents=tuple(link(record, naming, p.operation, p.argument) for p in op.parents[:MOST_LINKS]),
        children=tuple(link(record, naming, at) for at in graph.flows.children[index][:MOST_LINKS]),
        passes=tuple(link(record, naming, at) for at in passes) if len(passes) > 1 else (),
        stack=tuple(StackLine(*frame) for frame in stack),
        part=part,
        around=crumbs(graph.tree, graph.tree.blocks[part].parent),
        has_value=index in trace.tensors["value"].shapes,
        has_gradient=index in trace.tensors["gradient"].shapes,
        is_stale=index in record.stale,
    )


def operation_list(trace: OpenTrace, search: str = "") -> OperationList:
    """Operations whose label or module holds every word of the search; without any, many more of them."""
    words = search.lower().split()
    record, naming = trace.head.record, trace.naming
    paths = [call.path.lower() for call in record.calls]
    texts = (
        f"{naming.label(index)} {paths[call]}" for index, call in enumerate(field_of_all(record.operations, "call"))
    )
    matching = [index for index, text in enumerate(texts) if all(word in text for word in words)]
    most = MOST_FOUND if words else MOST_LISTED
    return OperationList(len(matching), tuple(link(record, naming, at) for at in matching[:most]))


def operation_value(trace: OpenTrace, index: int, what: str, request: ValueRequest) -> ValueView:
    """The value or gradient of an operation, of which only the part that is shown is read."""
    tensors = trace.tensors[what]
    shape = tensors.shapes.get(trace.operation(index).index)
    if shape is None:
        raise SelectError(f"The {what} of {trace.naming.label(index)} was not kept.")
    chosen = cut(shape, request.picture, request.index, request.tile)
    view = value_view(chosen, tensors.read(index, chosen.part), request.width, request.height)
    return coarse(view) if request.coarse else view
