"""Data that flows from one outermost call to another within a step.

What a training loop computes between two calls is not traced: a mode that stays in place outside of all modules would
get between the user's own. A tensor is recognized by itself, by its memory (`detach()`, views) or by autograd.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FrameType

from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.multiprocessing.reductions import StorageWeakRef

from layerscope.capture.core.call_edges import CallSeen, Made, Port, edges
from layerscope.capture.torch.dependency_tracing import ForgivingTracer
from layerscope.capture.torch.targets import numbered
from layerscope.capture.torch.tensor_tree import inputs_in, shape_of, tensors_in
from layerscope.capture.torch.trace.memory import is_plain, storage_of
from layerscope.capture.torch.trace.module_calls import ModuleCall, switchboard
from layerscope.model.records import CallEdge, CallNode

MOST_NODES = 10_000  # of the autograd graph, looked at on the way from one call back to others

Source = tuple[str, str]  # site and port


class OutermostCalls:
    """What the outermost calls of a step gave."""

    def __init__(self) -> None:
        self._tensors: dict[int, tuple[weakref.ref[Tensor], Source]] = {}
        self._memories: dict[int, tuple[StorageWeakRef, Source]] = {}
        self._nodes: dict[tuple[int, int], Source] = {}  # by sequence number: a node would hold the autograd graph
        self._first = 0  # the smallest of them

    def start_over(self) -> None:
        """Forget the step."""
        if self._tensors:
            self.__init__()  # type: ignore[misc]  # it is as new

    def give(self, site: str, outputs: Iterable[tuple[str, Tensor]]) -> None:
        """Remember what an outermost call gave."""
        for port, tensor in outputs:
            source = site, port
            self._tensors[id(tensor)] = weakref.ref(tensor), source
            if is_plain(tensor):
                self._memories[storage_of(tensor)] = StorageWeakRef(tensor.untyped_storage()), source
            if tensor.grad_fn is not None:
                number = tensor.grad_fn._sequence_nr()
                self._first = min(self._first, number) if self._nodes else number
                self._nodes[number, tensor.output_nr] = source

    def edges_into(self, site: str, inputs: Iterable[tuple[str, Tensor]]) -> Iterator[CallEdge]:
        """Edges from earlier outermost calls to one that is about to begin."""
        if self._tensors:
            for port, tensor in inputs:
                for source, source_port in dict.fromkeys(self._sources(tensor)):
                    yield CallEdge(source, source_port, site, port)

    def _sources(self, tensor: Tensor) -> Iterator[Source]:
        known = self._tensors.get(id(tensor))
        if known is not None and known[0]() is tensor:
            yield known[1]
            return
        found = list(self._by_autograd(tensor))
        memory = self._memories.get(storage_of(tensor)) if not found else None
        if memory is not None and not memory[0].expired():
            found = [memory[1]]
        yield from found

    def _by_autograd(self, tensor: Tensor) -> Iterator[Source]:
        waiting: list[tuple[Node | None, int]] = [(tensor.grad_fn, tensor.output_nr)]
        visited: set[Node] = set()
        while waiting and len(visited) < MOST_NODES:
            node, number = waiting.pop()
            if node is None or not self._nodes:
                continue
            sequence = node._sequence_nr()
            source = self._nodes.get((sequence, number))
            if source is not None:
                yield source
            elif node not in visited and sequence >= self._first:
                visited.add(node)
                waiting += node.next_functions


MOST_ORDERS = 24  # that are traced: a model that never does the same twice is not traced for ever
MOST_TRACED = 240  # forwards, most of them while waiting for a rare order to occur again
SETTLED = 3  # forwards in a row without a new order, after which tracing pauses

Key = tuple[str, str]  # a call: its site, and the site of the call around it
Ports = tuple[tuple[str, tuple[int, ...]], ...]


class TracedForward:
    """One traced forward: listens beside the tracer, and knows what each call takes and gives by its ports."""

    def __init__(self, model: nn.Module, members: Mapping[nn.Module, str]) -> None:
        self.tracer = ForgivingTracer(model)
        self._members = members
        self._numbers: Counter[str] = Counter()
        self._calls: list[CallSeen] = []
        self._open: list[CallSeen] = []
        self._owner: dict[int, CallSeen] = {}  # by the tracer's number of the call

    def begin(self, args: tuple[object, ...], frame: FrameType) -> None:
        """The outermost module is about to be called."""
        model = self.tracer.model
        assert model is not None
        switchboard.connect(self)  # before the tracer: it then hears of the end of a call after it
        self.tracer.__enter__()
        number = len(self.tracer.calls)
        self.tracer.before_module(model, args, frame)  # makes the inputs known
        self.tracer.begun = frame
        self.tracer.attempt(self._enter, model, args, frame, number)

    def end(self, output: object, frame: FrameType) -> None:
        """The outermost module was called, or raised."""
        model = self.tracer.model
        assert model is not None
        if self._open:  # else the tracer's own hooks came before ours, and have told it
            self.tracer.after_module(model, output, frame)
            self.after_module(model, output, frame)
        self.leave()

    def leave(self) -> None:
        """Stop listening."""
        self.tracer.__exit__()
        switchboard.disconnect(self)

    def before_module(self, module: nn.Module, args: tuple[object, ...], frame: FrameType) -> None:
        """A module is about to be called."""
        if frame is not self.tracer.begun and self.tracer.ops.is_looking():
            self.tracer.attempt(self._enter, module, args, frame, len(self.tracer.calls))

    def _enter(self, module: nn.Module, args: tuple[object, ...], frame: FrameType, number: int) -> None:
        path = self._members.get(module)
        if path is None:
            return
        self._numbers[path] += 1
        call = CallSeen(
            numbered(path, self._numbers[path]),
            path,
            self._open[-1] if self._open else None,
            len(self.tracer.ops.nodes),
        )
        call.inputs = self._ports(inputs_in(args, frame.f_locals.get("kwargs", {})))
        self._owner[number] = call
        self._calls.append(call)
        self._open.append(call)

    def after_module(self, module: nn.Module, result: object, frame: FrameType) -> None:
        """A module was called."""
        self.tracer.attempt(self._leave, module, result)

    def _leave(self, module: nn.Module, result: object) -> None:
        path = self._members.get(module)
        if path is None or not self._open or self._open[-1].path != path:
            return
        call = self._open.pop()
        call.outputs = self._ports(tensors_in(result, "output"))
        self._finish(call)

    def name(self, tensor: Tensor, site: str) -> None:
        """A tensor was named inside the call in progress."""
        if self._open:
            around = self._open[-1]
            call = CallSeen(site, around.path, around, len(self.tracer.ops.nodes))
            call.inputs = call.outputs = self._ports([("tensor", tensor)])
            self._calls.append(call)
            self._finish(call)

    def _finish(self, call: CallSeen) -> None:
        call.end = len(self.tracer.ops.nodes)
        if call.parent is not None:
            call.parent.children.append(call)

    def _ports(self, named: Iterable[tuple[str, Tensor]]) -> list[Port]:
        node_of = self.tracer.graph.memory.node_of
        return [Port(name, node_of(tensor)) for name, tensor in named]

    def edges(self) -> tuple[CallEdge, ...]:
        """How data flowed."""
        owners = [self._owner_of(call) for call in self.tracer.calls]
        made = [Made(owners[row[5]], row[3][1::2]) for row in self.tracer.ops.nodes.rows]
        return tuple(dict.fromkeys(edges(self._calls, made)))

    def _owner_of(self, call: ModuleCall) -> CallSeen | None:
        """The call of a module of the model: this one, or the one around a module of somebody else's."""
        mine = self._owner.get(call.index)
        return self._owner_of(call.parent) if mine is None and call.parent is not None else mine


class CallGraphRecorder:
    """The calls of recorded forwards, and which of them are traced; hands over what a kept step adds to the graph."""

    def __init__(self, report: Callable[[str, str], None]) -> None:
        self._report = report
        self._connected = False
        self._nodes: dict[Key, CallNode] = {}
        self._complete: set[Key] = set()  # of them, those whose ports are all known
        self._edges_of: dict[int, tuple[CallEdge, ...]] = {}  # by the order of calls, as far as it was traced
        self._owed: set[int] = set()  # orders that occurred in no traced forward
        self._settled = 0  # forwards in a row whose order had been traced
        self._traced = 0
        self._has_given_up = False
        self._calls: dict[Key, None] = {}  # of the step in progress
        self._edges: dict[CallEdge, None] = {}
        self._orders: set[int] = set()
        self._kept: set[CallNode | CallEdge] = set()

    def start_over(self) -> None:
        """Forget the step, and take the hooks of tracers away.

        A tracer takes its hooks away when its forward has ended, which torch does not bear inside a hook when the
        forward raised. While somebody else wants them they stay.
        """
        if self._connected:
            self._connected = False
            switchboard.disconnect(self)
        if self._calls:
            self._calls, self._edges, self._orders = {}, {}, set()

    def before_module(self, module: nn.Module, args: tuple[object, ...], frame: FrameType) -> None:
        """Do nothing: a traced forward listens for itself."""

    def after_module(self, module: nn.Module, result: object, frame: FrameType) -> None:
        """Do nothing: a traced forward listens for itself."""

    def begin(self, module: nn.Module, members: Mapping[nn.Module, str]) -> TracedForward | None:
        """The tracing of the outermost call that is about to begin, if it is wanted."""
        if self._has_given_up or (self._settled >= SETTLED and not self._owed):
            return None
        if self._traced >= MOST_TRACED or len(self._edges_of) >= MOST_ORDERS:
            self._has_given_up = True
            self._report(
                "info",
                f"The modules are called in ever new orders: {len(self._edges_of)} of them were traced. Calls of "
                "other orders are recorded without the data flow between them.",
            )
            return None
        self._traced += 1
        if not self._connected:
            self._connected = True
            switchboard.connect(self)
        return TracedForward(module, members)

    def lacks(self, call: Key) -> bool:
        """Whether the ports of a call are not known yet."""
        return call not in self._complete

    def add_call(self, call: Key, path: str, inputs: Iterable[tuple[str, Tensor]]) -> None:
        """Add a call that has begun."""
        known = self._nodes.get(call)
        ports = {**dict(known.inputs if known else ()), **dict(_shapes(inputs))}
        self._nodes[call] = CallNode(call[0], path, call[1], tuple(ports.items()), known.outputs if known else ())

    def complete(self, call: Key, outputs: Iterable[tuple[str, Tensor]]) -> None:
        """Add what a call gave."""
        node = self._nodes[call]
        self._nodes[call] = CallNode(node.site, node.path, node.parent, node.inputs, _shapes(outputs))
        self._complete.add(call)

    def note(self, calls: list[Key], forward: TracedForward | None, *, is_whole: bool, context: str) -> None:
        """Take in an outermost call that has ended or raised: all calls in it, and how it was traced, if it was."""
        order = hash((is_whole, context, *calls))
        if forward is not None and order not in self._edges_of:
            self._settled = 0
            self._learn(order, forward)
        elif order in self._edges_of:
            self._settled += 1
        elif len(calls) > 1:  # one alone has no edges
            self._settled = 0
            self._owed.add(order)
        if order not in self._orders:
            self._orders.add(order)
            self._calls.update(dict.fromkeys(calls))
            self._edges.update(dict.fromkeys(self._edges_of.get(order, ())))
        if self._has_given_up:
            self._owed.clear()

    def add_edges(self, found: Iterable[CallEdge]) -> None:
        """Add edges between outermost calls of the step."""
        self._edges.update(dict.fromkeys(found))

    def _learn(self, order: int, forward: TracedForward) -> None:
        trouble = forward.tracer.ops.trouble
        if trouble is not None:
            self._has_given_up = True
            self._report(
                "warning",
                f"How data flows between the modules is not recorded: {type(trouble).__name__}: {trouble}",
            )
            return
        self._edges_of[order] = forward.edges()
        self._owed.discard(order)

    def news(self) -> tuple[tuple[CallNode, ...], tuple[CallEdge, ...]]:
        """What the step in progress adds to the graph."""
        calls = tuple(node for call in self._calls if (node := self._nodes.get(call)) and node not in self._kept)
        return calls, tuple(edge for edge in self._edges if edge not in self._kept)

    def keep(self, calls: Iterable[CallNode], edges: Iterable[CallEdge]) -> None:
        """These stand in the graph from now on."""
        self._kept.update(calls, edges)


def _shapes(ports: Iterable[tuple[str, Tensor]]) -> Ports:
    return tuple((name, shape_of(tensor)) for name, tensor in ports)
