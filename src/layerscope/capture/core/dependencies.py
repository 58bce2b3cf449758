"""How the tensors named in a step depend on each other: traced, cut to what was named, remembered by step type."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import ParamSpec

from layerscope.capture.core.framework import ForwardOperations, Framework, Tensor
from layerscope.capture.core.named_tensors import NamedGraph, NamedTensor, StepData
from layerscope.model.lru_cache import LRUCache
from layerscope.model.records import DependencyLink, NamedNode, Sink, StepInfo, TensorType

P = ParamSpec("P")
MOST_PARAMETERS = 24  # in one node: a larger part of the model is shown by its children
Links = Mapping[NamedTensor, list[NamedTensor | str]]  # what each depends on: named tensors, and names of parameters


class DependencyTracer:
    """Which of the operations of a step made the tensors that were named in it."""

    def __init__(self, framework: Framework, operations: ForwardOperations) -> None:
        self._framework = framework
        self._operations = operations
        self._trouble: Exception | None = None
        self._nodes: dict[NamedTensor, int] = {}
        self._at: dict[int, list[NamedTensor]] = {}  # the same by node
        self._by_hand: dict[int, list[int]] = {}  # node → nodes it depends on
        self._leaves: dict[int, list[NamedTensor]] = {}  # by identity: parameters are known by it

    @property
    def trouble(self) -> Exception | None:
        """Why the dependencies are not known, if they are not."""
        return self._operations.trouble or self._trouble

    def leave(self) -> None:
        """Trace no more."""
        self._operations.leave()

    def _attempt(self, listen: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call the function, unless something went wrong before; if something goes wrong now, remember it."""
        if self.trouble is None:
            try:
                listen(*args, **kwargs)
            except Exception as error:  # noqa: BLE001  the rest of the step is recorded without dependencies
                self._trouble = error

    def name(self, entry: NamedTensor, tensor: Tensor) -> None:
        """Note which node the tensor is."""
        self._attempt(self._name, entry, tensor)

    def _name(self, entry: NamedTensor, tensor: Tensor) -> None:
        node = self._nodes[entry] = self._operations.add(tensor)
        self._at.setdefault(node, []).append(entry)
        if self._framework.is_leaf(tensor) and self._framework.requires_grad(tensor):
            self._leaves.setdefault(id(tensor), []).append(entry)

    def link(self, source: NamedTensor | Tensor, target: NamedTensor | Tensor) -> None:
        """Let one thing depend on another, whatever was computed."""
        self._attempt(self._link, source, target)

    def _link(self, source: NamedTensor | Tensor, target: NamedTensor | Tensor) -> None:
        one, other = (
            self._nodes[thing] if isinstance(thing, NamedTensor) else self._operations.add(thing)
            for thing in (source, target)
        )
        self._by_hand.setdefault(other, []).append(one)

    def links(self, parameters: Mapping[Tensor, str]) -> Links:
        """What each named tensor depends on, without anything named between."""
        return {entry: list(dict.fromkeys(self._sources(entry, parameters))) for entry in self._nodes}

    def _sources(self, target: NamedTensor, parameters: Mapping[Tensor, str]) -> Iterator[NamedTensor | str]:
        start = self._nodes[target]
        same = _named(self._at[start], target, only_before=True)
        if same is not None:  # the very tensor had another name before
            yield same
            return
        operations = self._operations
        waiting, visited = [start], {start}
        while waiting:
            node = waiting.pop()
            for tensor in operations.parameters(node):
                named = _named(self._leaves.get(id(tensor), ()), target)
                if named is not None:
                    yield named
                elif tensor in parameters:
                    yield parameters[tensor]
            for parent in (*operations.parents(node), *self._by_hand.get(node, ())):
                if parent not in visited:
                    visited.add(parent)
                    named = _named(self._at.get(parent, ()), target)
                    if named is None:
                        waiting.append(parent)
                    else:
                        yield named


def _named(entries: Sequence[NamedTensor], target: NamedTensor, *, only_before: bool = False) -> NamedTensor | None:
    """Which of the names of a tensor something depends on: the last it had when that was named, else its first."""
    fitting = [entry for entry in entries if entry.iteration <= target.iteration and entry is not target]
    before = [entry for entry in fitting if entry.number < target.number]
    return before[-1] if before else fitting[0] if fitting and not only_before else None


def groups(names: Sequence[str], prefix: str = "") -> dict[str, str]:
    """The node of each parameter: the child of the model it is in, or of that child where it has too many."""
    children: dict[str, list[str]] = {}
    for name in names:
        child, dot, _ = name[len(prefix) :].partition(".")
        children.setdefault(prefix + child if dot else name, []).append(name)
    nodes: dict[str, str] = {}
    for child, members in children.items():
        is_large = len(members) > MOST_PARAMETERS
        nodes.update(groups(members, f"{child}.") if is_large else dict.fromkeys(members, child))
    return nodes


class NamedSubgraph:
    """Graphs of the iterations of a step, made of what was named."""

    def __init__(self, framework: Framework) -> None:
        self._framework = framework
        self._group: dict[str, str] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._first: dict[
            tuple[str, str], tuple[int, ...]
        ] = {}  # shapes as first seen: a smaller batch is no new graph

    def graphs(self, now: StepData, parameters: Mapping[Tensor, str], links: Links) -> tuple[NamedGraph | None, ...]:
        """The graph of each iteration, initial values first."""
        names = list(parameters.values())
        if self._group.keys() != set(names):
            self._group = groups(names)
            self._shapes = {name: self._framework.shape(tensor) for tensor, name in parameters.items()}
        labels = {entry.label for entry in now.entries.values()}
        by_iteration: dict[int, list[NamedTensor]] = {}
        for entry in now.entries.values():
            by_iteration.setdefault(entry.iteration, []).append(entry)
        return tuple(
            NamedGraph(self._nodes(members, links, labels), self._links(members, links, labels))
            if (members := by_iteration.get(iteration))
            else None
            for iteration in range(max(now.iterations, 1) + 1)
        )

    def _nodes(self, entries: Sequence[NamedTensor], links: Links, labels: set[str]) -> tuple[NamedNode, ...]:
        types: dict[str, TensorType] = {}
        roles: dict[str, dict[str, tuple[int, ...]]] = {}
        for entry in entries:
            types.setdefault(entry.label, entry.type)
            shape = self._first.setdefault((entry.label, entry.role), entry.shape)
            roles.setdefault(entry.label, {})[entry.role] = shape
        used = {self._group[name] for entry in entries for name in links.get(entry, ()) if isinstance(name, str)}
        for name, group in self._group.items():
            if group in used:
                node, role = self._node(name, labels)
                types[node] = TensorType.PARAMETER
                roles.setdefault(node, {})[role] = self._shapes.get(name, ())
        return tuple(NamedNode(name, type, tuple(roles[name].items())) for name, type in types.items())

    def _links(self, entries: Sequence[NamedTensor], links: Links, labels: set[str]) -> tuple[DependencyLink, ...]:
        dependencies = []
        for target in entries:
            for source in links.get(target, ()):
                if isinstance(source, str):
                    end = (*self._node(source, labels), 0)
                else:
                    end = (source.label, source.role, target.iteration - source.iteration)
                dependencies.append(DependencyLink(*end, target.label, target.role))
        order = attrgetter("target", "target_role", "source", "source_role", "back")
        return tuple(sorted(dependencies, key=order))

    def _node(self, name: str, labels: set[str]) -> tuple[str, str]:
        """Node and role of a parameter; a node whose name a recorded tensor has gets a dot at its end."""
        group = self._group[name]
        return (f"{group}." if group in labels else group), name[len(group) + 1 :]


_SURE = 2  # steps that gave what was known
_RARELY = 10  # the factor between one check and the next, from then on
_MOST_WAITING = 16
_MOST_KNOWN = 4096


class DependencyCache:
    """Graphs by the order in which tensors were named, and how sure that is for each type of step."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.known: LRUCache[int, tuple[int, ...]] = LRUCache(_MOST_KNOWN)
        self._sure: dict[str, int] = {}  # steps of the type since one had something new
        self._waiting: list[tuple[StepInfo, int]] = []  # written, but of an order whose graphs are not known

    def wants(self, type: str) -> bool:
        """Whether the next step of the type is to be traced."""
        sure = self._sure.get(type, 0)
        while sure >= _SURE and sure % _RARELY == 0:
            sure //= _RARELY
        return sure < _SURE

    def learn(self, data: StepData) -> None:
        """Take in what a step showed."""
        before = self.known.peek(data.order)
        if data.is_traced:
            self.known.put(data.order, self._numbers(data))
        same = before is not None and before == self.known.peek(data.order)
        self._sure[data.type] = self._sure.get(data.type, 0) + 1 if same else 0
        if data.is_traced:
            self._settle(data.order)

    def put(self, data: StepData, reason: str) -> None:
        """Hand over the record of a step, and once more when its graphs are known: the last one counts."""
        info = data.info(reason, self.known.peek(data.order) or self._numbers(data))
        self._sink.put(info)
        if data.order not in self.known:
            self._waiting = [*self._waiting[1 - _MOST_WAITING :], (info, data.order)]

    def _settle(self, order: int) -> None:
        graphs = self.known.peek(order) or ()
        for info, its_order in self._waiting:
            if its_order == order and info.graphs != graphs:
                self._sink.put(replace(info, graphs=graphs))
        self._waiting = [waiting for waiting in self._waiting if waiting[1] != order]

    def _numbers(self, data: StepData) -> tuple[int, ...]:
        return tuple(-1 if graph is None else self._sink.dependencies_id(*graph) for graph in data.graphs or ())
