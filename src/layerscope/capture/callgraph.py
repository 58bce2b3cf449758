"""Which call's data went into which: from the tensors of one forward to edges between calls of modules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from layerscope.records import CallNode, Edge


class Port(NamedTuple):
    """One tensor that a call took or gave."""

    name: str
    shape: tuple[int, ...]
    tensor: int | None  # its number among the tensors of the forward; None if it came from nowhere we know


@dataclass(slots=True)
class CallSeen:
    """One call of a module in the forward, or a tensor that was named in it: a call that gives what it takes."""

    site: str
    path: str
    parent: CallSeen | None
    begin: int  # how many tensors there were when it began
    end: int = 0  # and when it ended
    inputs: list[Port] = field(default_factory=list)
    outputs: list[Port] = field(default_factory=list)
    children: list[CallSeen] = field(default_factory=list)  # in the order in which they ended


class Made(NamedTuple):
    """How a tensor was made: in which call, directly, and from which others."""

    call: CallSeen | None
    parents: tuple[int, ...]


Source = tuple[CallSeen, str]


def call_nodes(calls: Iterable[CallSeen]) -> Iterator[CallNode]:
    """The calls as a graph of the run holds them."""
    for call in calls:
        ports = (tuple((port.name, port.shape) for port in side) for side in (call.inputs, call.outputs))
        yield CallNode(call.site, call.path, call.parent.site if call.parent else "", *ports)


def edges(calls: Sequence[CallSeen], made: Sequence[Made]) -> Iterator[Edge]:
    """How data flowed between calls that stand side by side, and between a call and those directly inside it.

    Operations that belong to no call but the one around are passed through.
    """
    for around in (call for call in calls if call.children):
        inside = _Inside(around, made)
        for place, call in enumerate(around.children):
            for port in call.inputs:
                for source, name in inside.sources(port.tensor, place):
                    yield _edge(source, name, call, port.name)
        for port in around.outputs:
            for source, name in inside.sources(port.tensor, len(around.children)):
                yield Edge(source.site, name, around.site, port.name)


def _edge(source: CallSeen, name: str, target: CallSeen, port: str) -> Edge:
    """The edge, lifted to where both ends stand side by side: data may come in past the calls around it."""
    beside = _around(source)
    around = target
    while around.parent is not None and around.parent is not source and around.parent not in beside:
        around = around.parent
    while source.parent is not None and source is not around.parent and source.parent is not around.parent:
        source, name = source.parent, ""
    return Edge(source.site, name, around.site, port if around is target else "")


def _around(call: CallSeen) -> list[CallSeen]:
    found = []
    while call.parent is not None:
        call = call.parent
        found.append(call)
    return found


class _Inside:
    """What is inside one call: where tensors used there came from."""

    def __init__(self, around: CallSeen, made: Sequence[Made]) -> None:
        self._around = around
        self._made = made
        self._inputs: dict[int | None, str] = {}
        for port in around.inputs:
            self._inputs.setdefault(port.tensor, port.name)
        self._given: dict[int | None, list[tuple[int, CallSeen, str]]] = {}
        for place, call in enumerate(around.children):
            for port in call.outputs:
                self._given.setdefault(port.tensor, []).append((place, call, port.name))

    def sources(self, tensor: int | None, place: int) -> Iterator[Source]:
        """Calls, and which of their ports, that a tensor came from which is used after so many of the children."""
        waiting, seen = [(tensor, len(self._made))], set()
        while waiting:
            number, at = waiting.pop()
            if number is None or number in seen:
                continue
            seen.add(number)
            giver = self._giver(number, at, place)
            if giver is not None:
                yield giver
            elif number in self._inputs:
                yield self._around, self._inputs[number]
            elif self._made[number].call is self._around:
                waiting += [(parent, number) for parent in self._made[number].parents]
            else:
                yield from self._elsewhere(number)

    def _giver(self, tensor: int, at: int, place: int) -> Source | None:
        """The last child that gave the tensor, among those that had ended when there were `at` tensors."""
        for own, call, name in reversed(self._given.get(tensor, ())):
            if own < place and call.end <= at:
                return call, name
        return None

    def _elsewhere(self, tensor: int) -> Iterator[Source]:
        """The call that made a tensor which was neither given nor taken here: it went through an attribute, say."""
        maker = self._made[tensor].call
        outside = _around(self._around)
        while maker is not None:
            if maker.parent is self._around or (maker is not self._around and maker.parent in outside):
                yield maker, next((port.name for port in maker.outputs if port.tensor == tensor), "")
                return
            maker = maker.parent
