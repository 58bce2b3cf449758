"""The traces of a run: their list, graphs, operations and values, read from the run's folder and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from layerscope.errors import FormatError, SelectError
from layerscope.graph.layers import Naming, name_layers
from layerscope.graph.trace_blocks import TraceBlocks
from layerscope.model.lru_cache import LRUCache
from layerscope.model.records import call_site
from layerscope.model.trace_record import Operation, field_of_all
from layerscope.query.trace_tables import stack_of
from layerscope.server.catalogue import OpenRunEntry
from layerscope.server.query_params import chosen, integer
from layerscope.store.traces import (
    GRADIENTS,
    VALUES,
    StoredTensors,
    TraceHead,
    TraceOutline,
    pass_folders,
    pass_revision,
    read_head,
    read_outline,
    tensors_of,
    without_collection,
)
from layerscope.views import trace_page as page
from layerscope.views.trace_graph import TraceGraph, TraceGroups, TraceNumbers, TracePicture, crumbs
from layerscope.views.trace_page import TraceOverview, overview
from layerscope.views.values import ValueView, coarse, cut, value_view
from layerscope.views.wording import FIELDS

KEPT = 3  # traces held in memory
FEW = 10_000  # operations of a trace of which both graphs are held
MOST_FOUND, MOST_LISTED, MOST_LINKS = 60, 20_000, 200
FILES = {"value": VALUES, "gradient": GRADIENTS}

Asked = Callable[[OpenRunEntry, str, Request], object]


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


@dataclass
class OpenTrace:
    """A trace that is being looked at."""

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

    def operation(self, request: Request) -> Operation:
        """The operation that is asked for."""
        count = len(self.head.record.operations)
        return self.head.record.operations[integer(request, "op", None, 0, max(count - 1, 0))]


class Traces:
    """Answers what the page asks of traces. The last ones looked at are held: a trace never changes."""

    def __init__(self) -> None:
        self._open: LRUCache[tuple[str, int], OpenTrace] = LRUCache(KEPT)
        self._entries: dict[tuple[str, int], TraceEntry] = {}

    def routes(self, of_run: Callable[[Asked], Callable[[Request], Response]]) -> list[Route]:
        """What can be asked for, below a run."""
        asked: dict[str, Asked] = {
            "traces": self.list,
            "trace": self.graph,
            "trace-groups": self.groups,
            "trace-numbers": self.numbers,
            "trace-overview": self.overview,
            "operation": self.operation,
            "operations": self.search,
            "value": self.value,
        }
        return [Route(f"/api/run/{{name:path}}/{last}", of_run(answer)) for last, answer in asked.items()]

    def list(self, opened: OpenRunEntry, name: str, request: Request) -> TraceList:
        """The traces of the run; one that cannot be read says why in the place of its failure."""
        return TraceList(name, tuple(self._entry(folder) for folder in pass_folders(opened.reader.folder)))

    def _entry(self, folder: Path) -> TraceEntry:
        try:
            key = _key(folder)
            if key not in self._entries:
                outline = read_outline(folder)
                said = {name: getattr(outline, name) for name in TraceOutline.__slots__}
                self._entries[key] = TraceEntry(name=folder.name, **said)
            return self._entries[key]
        except FormatError as error:
            return TraceEntry(folder.name, "", 0, 0, 0, 0.0, str(error), None)

    def _opened(self, folder: Path) -> OpenTrace:
        return self._open.get(_key(folder), lambda: OpenTrace(folder, read_head(folder)))

    def _asked(self, opened: OpenRunEntry, request: Request) -> OpenTrace:
        """The trace that is asked for, among those that are there."""
        folders = {folder.name: folder for folder in pass_folders(opened.reader.folder)}
        name = request.query_params.get("trace", "")
        if name not in folders:
            raise SelectError(f"The run has no trace {name[:40]!r}. It has {len(folders)} of them.")
        return self._opened(folders[name])

    def graph(self, opened: OpenRunEntry, name: str, request: Request) -> TracePicture:
        """The modules of the graph, and what is in those that are open at first, or in all if they are few."""
        with without_collection():
            return self._asked(opened, request).graph(rolled=_is_rolled(request)).view()

    def groups(self, opened: OpenRunEntry, name: str, request: Request) -> TraceGroups:
        """What is in some groups, given by their numbers."""
        graph = self._asked(opened, request).graph(rolled=_is_rolled(request))
        return graph.groups([at for at in _numbers(request, "of") if graph.has_group(at)])

    def numbers(self, opened: OpenRunEntry, name: str, request: Request) -> TraceNumbers:
        """A field of operations by part of the graph."""
        field = chosen(request, "field", FIELDS)
        graph = self._asked(opened, request).graph(rolled=_is_rolled(request))
        return TraceNumbers(field, *graph.numbers(field))

    def overview(self, opened: OpenRunEntry, name: str, request: Request) -> TraceOverview:
        """What the trace is made of, and the operations that take the most."""
        return self._asked(opened, request).overview

    def operation(self, opened: OpenRunEntry, name: str, request: Request) -> page.OperationView:
        """Everything known of one operation but its value."""
        trace = self._asked(opened, request)
        op = trace.operation(request)
        record, naming = trace.head.record, trace.naming
        graph = trace.graph(rolled=_is_rolled(request))
        tree = graph.tree
        call = record.calls[op.call]
        links = [page.link(record, naming, at) for at in graph.flows.children[op.index][:MOST_LINKS]]
        passes = naming.members[naming.layer[op.index]][:MOST_LINKS]
        return page.OperationView(
            operation=op.index,
            operations=len(record.operations),
            label=naming.label(op.index),
            function=op.function,
            role=op.role.value,
            module=call.path,
            module_class=call.class_name,
            site=call_site(call.path, call.number),
            shape=op.shape,
            dtype=op.dtype,
            facts=page.facts(record, op),
            arguments=tuple(page.Fact(key, text) for key, text in op.arguments.items()),
            parents=tuple(page.link(record, naming, p.operation, p.argument) for p in op.parents[:MOST_LINKS]),
            children=tuple(links),
            passes=tuple(page.link(record, naming, at) for at in passes) if len(passes) > 1 else (),
            stack=_stack(trace, op),
            part=tree.leaf[op.index],
            around=crumbs(tree, tree.blocks[tree.leaf[op.index]].parent),
            has_value=op.index in trace.tensors["value"].shapes,
            has_gradient=op.index in trace.tensors["gradient"].shapes,
            is_stale=op.index in record.stale,
        )

    def search(self, opened: OpenRunEntry, name: str, request: Request) -> page.OperationList:
        """Operations whose label or module holds every word of the search; without any, many more of them."""
        trace = self._asked(opened, request)
        words = request.query_params.get("search", "").lower().split()
        record, naming = trace.head.record, trace.naming
        paths = [call.path.lower() for call in record.calls]
        found = []
        for index, call in enumerate(field_of_all(record.operations, "call")):
            text = f"{naming.label(index)} {paths[call]}"
            if all(word in text for word in words):
                found.append(index)
        most = MOST_FOUND if words else MOST_LISTED
        return page.OperationList(len(found), tuple(page.link(record, naming, at) for at in found[:most]))

    def value(self, opened: OpenRunEntry, name: str, request: Request) -> ValueView:
        """The value or gradient of an operation, of which only the part that is shown is read."""
        trace = self._asked(opened, request)
        op = trace.operation(request)
        what = chosen(request, "what", tuple(FILES))
        shape = trace.tensors[what].shapes.get(op.index)
        if shape is None:
            raise SelectError(f"The {what} of {trace.naming.label(op.index)} was not kept.")
        asked = cut(shape, request.query_params.get("picture"), _numbers(request, "at"), integer(request, "tile", 0, 0))
        part = trace.tensors[what].read(op.index, asked.part)
        width, height = (integer(request, name, 400, 1, 2000) for name in ("width", "height"))
        view = value_view(asked, part, width, height)
        return coarse(view) if "coarse" in request.query_params else view


def _key(folder: Path) -> tuple[str, int]:
    return str(folder), pass_revision(folder)


def _is_rolled(request: Request) -> bool:
    return integer(request, "unrolled", 0, 0, 1) == 0


def _numbers(request: Request, name: str) -> list[int]:
    texts = request.query_params.get(name, "").split(".")
    if not all(text.isdecimal() and len(text) < 12 for text in texts if text):
        raise HTTPException(400, f"{name!r} must be whole numbers with dots between, not {'.'.join(texts)[:40]!r}.")
    return [int(text) for text in texts if text]


def _stack(trace: OpenTrace, op: Operation) -> tuple[page.StackLine, ...]:
    return tuple(page.StackLine(*frame) for frame in stack_of(trace.head.record, op.index, trace.head.code))
