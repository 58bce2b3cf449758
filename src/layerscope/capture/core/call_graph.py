"""The stack of module calls in progress, and the graph of calls: which call's data went into which."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from layerscope.capture.core.framework import ForwardOperations, Framework, Port, Tensor
from layerscope.model.records import CallEdge, CallNode, call_site


class ModuleCall:
    """One call of a module."""

    __slots__ = ("module", "number", "parent", "path", "site")

    def __init__(self, module: Any, path: str, number: int, parent: ModuleCall | None) -> None:  # Any: a module
        self.module = module
        self.path = path
        self.number = number  # 1 for the first call of the module
        self.parent = parent
        self.site = call_site(path, number)


C = TypeVar("C", bound=ModuleCall)


class CallStack(Generic[C]):
    """The calls in progress on one thread, and how often each module was called."""

    __slots__ = ("_counts", "current", "outermost")

    def __init__(self) -> None:
        self.current: C | None = None
        self.outermost: C | None = None
        self._counts: dict[Hashable, int] = {}

    def count(self, what: Hashable) -> int:
        """Number of the next call of a module, or of what else is counted by itself."""
        number = self._counts[what] = self._counts.get(what, 0) + 1
        return number

    def enter(self, call: C) -> None:
        """A call begins inside the current one."""
        if self.current is None:
            self.outermost = call
        self.current = call

    def leave(self) -> C:
        """The current call ends."""
        call = self.current
        assert call is not None
        self.current = call.parent  # type: ignore[assignment]  # of the same class as the call itself
        if self.current is None:
            self.outermost = None
        return call

    def start_over(self) -> None:
        """Number calls from 1 again."""
        self._counts.clear()

    def __iter__(self) -> Iterator[C]:
        """The calls in progress, the innermost first."""
        call = self.current
        while call is not None:
            yield call
            call = call.parent  # type: ignore[assignment]


MOST_NODES = 10_000  # of the autograd graph, looked at on the way from one call back to others
MOST_ORDERS = 24  # that are traced: a model that never does the same twice is not traced for ever
MOST_TRACED = 240  # forwards, most of them while waiting for a rare order to occur again
SETTLED = 3  # forwards in a row without a new order, after which tracing pauses


class NodePort(NamedTuple):
    """One tensor that a call took or gave."""

    name: str
    node: int | None  # of the traced operations; None if none of them made it


class CallKey(NamedTuple):
    """A node of the graph."""

    site: str
    parent: str  # site of the call around it, "" for an outermost one


class TracedCall(ModuleCall):
    """A call of a module in a forward, or a tensor that was named in it: a call that gives what it takes.

    Ports and nodes are known where the operations of the forward are traced.
    """

    parent: TracedCall | None
    begin = end = 0  # how many nodes there were
    sources: Sequence[NodePort] = ()  # what went in
    targets: Sequence[NodePort] = ()  # what came out
    children: list[TracedCall] = []  # noqa: RUF012  in the order in which they ended; its own where it is traced

    def __init__(self, module: Any, path: str, number: int, parent: TracedCall | None) -> None:
        super().__init__(module, path, number, parent)
        self.key = CallKey(self.site, "" if parent is None else parent.site)


class CallPort(NamedTuple):
    """One end of an edge."""

    call: TracedCall
    name: str


def edges(calls: Sequence[TracedCall], operations: ForwardOperations) -> Iterator[CallEdge]:
    """How data flowed between calls that stand side by side, and between a call and those directly inside it.

    Operations that belong to no call but the one around are passed through. The calls are in the order of beginning.
    """
    makers: list[TracedCall | None] = [None] * len(operations)
    for call in calls:  # those inside come later, and take their nodes from those around
        makers[call.begin : call.end] = [call] * (call.end - call.begin)
    for around in (call for call in calls if call.children):
        inside = _Inside(around, makers, operations)
        for position, call in enumerate(around.children):
            for port in call.sources:
                sources, join = inside.sources(call, port, position)
                yield from (_edge(source, call, port.name, join) for source in sources)
        for port in around.targets:
            sources, join = inside.sources(around, port, len(around.children))
            yield from (CallEdge(source.call.site, source.name, around.site, port.name, join) for source in sources)


def _edge(end: CallPort, target: TracedCall, port: str, join: str) -> CallEdge:
    """The edge, lifted to where both ends stand side by side: data may come in past the calls around it."""
    source, name = end
    beside = _around(source)
    around = target
    while around.parent is not None and around.parent is not source and around.parent not in beside:
        around = around.parent
    while source.parent is not None and source is not around.parent and source.parent is not around.parent:
        source, name = source.parent, ""
    return CallEdge(source.site, name, around.site, *((port, join) if around is target else ("",)))


def _around(call: TracedCall) -> list[TracedCall]:
    outer = []
    while call.parent is not None:
        call = call.parent
        outer.append(call)
    return outer


class _Inside:
    """What is inside one call: where tensors used there came from."""

    def __init__(self, around: TracedCall, makers: Sequence[TracedCall | None], operations: ForwardOperations) -> None:
        self._around = around
        self._makers = makers
        self._parents = operations.parents
        self._inputs: dict[int | None, str] = {}
        for port in around.sources:
            self._inputs.setdefault(port.node, port.name)
        self._given: dict[int | None, list[tuple[int, CallPort]]] = {}
        for position, call in enumerate(around.children):
            for port in call.targets:
                self._given.setdefault(port.node, []).append((position, CallPort(call, port.name)))
        self._joins: dict[int, str] = {}  # the first port that a tensor in which several met went into

    def sources(self, target: TracedCall, port: NodePort, position: int) -> tuple[list[CallPort], str]:
        """Calls and ports that the tensor at a port came from, before child `position`; and where several met.

        That is named by the first port that the tensor in which they met went into.
        """
        sources: dict[int, list[CallPort]] = {}  # by the nodes on the way, of those that were made here nothing
        waiting = [(port.node, len(self._makers))]
        while waiting:
            node, at = waiting.pop()
            if node is None or node in sources:
                continue
            given = self._givers(node, at, position)
            sources[node] = given or []
            if given is None:
                waiting += [(parent, node) for parent in self._parents(node)]
        join = self._met(sources).get(-1 if port.node is None else port.node, -1)
        name = self._joins.setdefault(join, f"{target.site} {port.name}") if join >= 0 and not sources[join] else ""
        return [source for given in sources.values() for source in given], name

    def _givers(self, node: int, at: int, position: int) -> list[CallPort] | None:
        """The last child that gave the tensor, among those that had ended when there were `at` nodes; else who did.

        None if operations of the call itself made it.
        """
        for own, source in reversed(self._given.get(node, ())):
            if own < position and source.call.end <= at:
                return [source]
        if node in self._inputs:
            return [CallPort(self._around, self._inputs[node])]
        return None if self._makers[node] is self._around else list(self._elsewhere(node))

    def _elsewhere(self, node: int) -> Iterator[CallPort]:
        """The call that made a tensor which was neither given nor taken here: it went through an attribute, say."""
        maker = self._makers[node]
        outside = _around(self._around)
        while maker is not None:
            if maker.parent is self._around or (maker is not self._around and maker.parent in outside):
                yield CallPort(maker, next((port.name for port in maker.targets if port.node == node), ""))
                return
            maker = maker.parent

    def _met(self, sources: Mapping[int, list[CallPort]]) -> dict[int, int]:
        """For each node the one in which all met that it was made from: what is made of one alone stands for it."""
        joins: dict[int, int] = {}
        for node in sorted(sources):  # what a tensor is made from comes before it
            met = {joins[parent] for parent in self._parents(node) if parent in joins}
            if sources[node] or met:
                joins[node] = node if sources[node] or len(met) > 1 else met.pop()
        return joins


class SitePort(NamedTuple):
    """What an outermost call gave."""

    site: str
    port: str


class OutermostCalls:
    """Edges from one outermost call of a step to another.

    What a training loop computes between two calls is not traced: a mode that stays in place outside of all modules
    would get between the user's own. A tensor is recognized by itself, its memory (`detach()`, views) or by autograd.
    """

    def __init__(self, framework: Framework) -> None:
        self._framework = framework
        self._tensors: dict[int, tuple[weakref.ref[Tensor], SitePort]] = {}
        self._memories: dict[int, tuple[Callable[[], bool], SitePort]] = {}
        self._nodes: dict[tuple[int, int], SitePort] = {}  # by number: a node would keep the autograd graph alive
        self._first = 0  # the smallest of the numbers

    def start_over(self) -> None:
        """Forget the step."""
        if self._tensors:
            self._tensors, self._memories, self._nodes = {}, {}, {}

    def give(self, site: str, outputs: Iterable[Port]) -> None:
        """Remember what an outermost call gave."""
        for port, tensor in outputs:
            source = SitePort(site, port)
            self._tensors[id(tensor)] = weakref.ref(tensor), source
            memory = self._framework.same_memory(tensor)
            if memory is not None:
                self._memories[memory[0]] = memory[1], source
            if not self._framework.is_leaf(tensor):
                node, output = self._framework.edge(tensor)
                number = self._framework.node_number(node)
                self._first = min(self._first, number) if self._nodes else number
                self._nodes[number, output] = source

    def edges_into(self, site: str, inputs: Iterable[Port]) -> Iterator[CallEdge]:
        """Edges from earlier outermost calls to one that is about to begin."""
        if self._tensors:
            for port, tensor in inputs:
                for source in dict.fromkeys(self._sources(tensor)):
                    yield CallEdge(*source, site, port)

    def _sources(self, tensor: Tensor) -> Iterator[SitePort]:
        known = self._tensors.get(id(tensor))
        if known is not None and known[0]() is tensor:
            yield known[1]
            return
        by_autograd = list(self._by_autograd(tensor))
        yield from by_autograd
        memory = None if by_autograd else self._framework.same_memory(tensor)
        if memory is not None and memory[0] in self._memories:
            is_freed, source = self._memories[memory[0]]
            if not is_freed():
                yield source

    def _by_autograd(self, tensor: Tensor) -> Iterator[SitePort]:
        if not self._nodes or self._framework.is_leaf(tensor):
            return
        waiting: list[tuple[Any, int]] = [self._framework.edge(tensor)]
        visited: set[Any] = set()
        while waiting and len(visited) < MOST_NODES:
            node, output = waiting.pop()
            if node is None:
                continue
            number = self._framework.node_number(node)
            source = self._nodes.get((number, output))
            if source is not None:
                yield source
            elif node not in visited and number >= self._first:
                visited.add(node)
                waiting += self._framework.next_edges(node)


class CallGraphRecorder:
    """The calls of recorded forwards, and which of them are traced; hands over what a kept step adds to the graph."""

    def __init__(self, framework: Framework, report: Callable[[str, str], None]) -> None:
        self._framework = framework
        self._report = report
        self._nodes: dict[CallKey, CallNode] = {}
        self._complete: set[CallKey] = set()  # of them, those whose ports are all known
        self._edges_of: dict[int, tuple[CallEdge, ...]] = {}  # by the order of calls, as far as it was traced
        self._owed: set[int] = set()  # orders that occurred in no traced forward
        self._settled = 0  # forwards in a row whose order had been traced
        self.traced = 0  # forwards
        self._has_given_up = False
        self._calls: dict[CallKey, None] = {}  # of the step in progress
        self._edges: dict[CallEdge, None] = {}
        self._orders: set[int] = set()
        self._kept: set[CallNode | CallEdge] = set()

    def start_over(self) -> None:
        """Forget the step."""
        if self._calls:
            self._calls, self._edges, self._orders = {}, {}, set()

    def wants_trace(self) -> bool:
        """Whether the forward that is about to begin is traced."""
        if self._has_given_up or (self._settled >= SETTLED and not self._owed):
            return False
        if self.traced >= MOST_TRACED or len(self._edges_of) >= MOST_ORDERS:
            self._has_given_up = True
            self._report(
                "info",
                f"The modules are called in ever new orders: {len(self._edges_of)} of them were traced. Calls of "
                "other orders are recorded without the data flow between them.",
            )
            return False
        return True

    def lacks(self, call: CallKey) -> bool:
        """Whether the ports of a call are not known yet."""
        return call not in self._complete

    def add_call(self, call: CallKey, path: str, inputs: Iterable[Port]) -> None:
        """Add a call that has begun."""
        known = self._nodes.get(call)
        ports = {**dict(known.inputs if known else ()), **dict(self._shapes(inputs))}
        self._nodes[call] = CallNode(call.site, path, call.parent, tuple(ports.items()), known.outputs if known else ())

    def complete(self, call: CallKey, outputs: Iterable[Port]) -> None:
        """Add what a call gave."""
        node = self._nodes[call]
        self._nodes[call] = CallNode(node.site, node.path, node.parent, node.inputs, self._shapes(outputs))
        self._complete.add(call)

    def _shapes(self, ports: Iterable[Port]) -> tuple[tuple[str, tuple[int, ...]], ...]:
        return tuple((name, self._framework.shape(tensor)) for name, tensor in ports)

    def note(
        self, calls: list[TracedCall], operations: ForwardOperations | None, *, is_whole: bool, context: str
    ) -> None:
        """Take in a forward that has ended or raised: all calls in it, and its operations if they were traced."""
        keys = [call.key for call in calls]
        order = hash((is_whole, context, *keys))
        if operations is not None and order not in self._edges_of:
            self._settled = 0
            self._learn(order, calls, operations)
        elif order in self._edges_of:
            self._settled += 1
        elif len(calls) > 1:  # one alone has no edges
            self._settled = 0
            self._owed.add(order)
        if order not in self._orders:
            self._orders.add(order)
            self._calls.update(dict.fromkeys(keys))
            self._edges.update(dict.fromkeys(self._edges_of.get(order, ())))
        if self._has_given_up:
            self._owed.clear()

    def add_edges(self, between: Iterable[CallEdge]) -> None:
        """Add edges between outermost calls of the step."""
        self._edges.update(dict.fromkeys(between))

    def _learn(self, order: int, calls: list[TracedCall], operations: ForwardOperations) -> None:
        trouble = operations.trouble
        if trouble is not None:
            self._has_given_up = True
            self._report(
                "warning",
                f"How data flows between the modules is not recorded: {type(trouble).__name__}: {trouble}",
            )
            return
        self._edges_of[order] = tuple(dict.fromkeys(edges(calls, operations)))
        self._owed.discard(order)

    def news(self) -> tuple[tuple[CallNode, ...], tuple[CallEdge, ...]]:
        """What the step in progress adds to the graph."""
        calls = tuple(node for call in self._calls if (node := self._nodes.get(call)) and node not in self._kept)
        return calls, tuple(edge for edge in self._edges if edge not in self._kept)

    def keep(self, calls: Iterable[CallNode], edges: Iterable[CallEdge]) -> None:
        """These stand in the graph from now on."""
        self._kept.update(calls, edges)
