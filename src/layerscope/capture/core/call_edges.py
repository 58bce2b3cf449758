"""Which call's data went into which: from the tensors of one forward to edges between calls of modules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from layerscope.model.records import CallEdge


class Port(NamedTuple):
    """One tensor that a call took or gave."""

    name: str
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


def edges(calls: Sequence[CallSeen], made: Sequence[Made]) -> Iterator[CallEdge]:
    """How data flowed between calls that stand side by side, and between a call and those directly inside it.

    Operations that belong to no call but the one around are passed through.
    """
    for around in (call for call in calls if call.children):
        inside = _Inside(around, made)
        for place, call in enumerate(around.children):
            for port in call.inputs:
                sources, join = inside.sources(call, port, place)
                yield from (_edge(source, name, call, port.name, join) for source, name in sources)
        for port in around.outputs:
            sources, join = inside.sources(around, port, len(around.children))
            yield from (CallEdge(source.site, name, around.site, port.name, join) for source, name in sources)


def _edge(source: CallSeen, name: str, target: CallSeen, port: str, join: str) -> CallEdge:
    """The edge, lifted to where both ends stand side by side: data may come in past the calls around it."""
    beside = _around(source)
    around = target
    while around.parent is not None and around.parent is not source and around.parent not in beside:
        around = around.parent
    while source.parent is not None and source is not around.parent and source.parent is not around.parent:
        source, name = source.parent, ""
    return CallEdge(source.site, name, around.site, *((port, join) if around is target else ("",)))


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
        self._joins: dict[int, str] = {}  # the first port that a tensor in which several met went into

    def sources(self, target: CallSeen, port: Port, place: int) -> tuple[list[Source], str]:
        """Calls and ports that the tensor at a port came from, after so many of the children; and where several met.

        That is told by the first port that the tensor in which they met went into.
        """
        found: dict[int, list[Source]] = {}  # by the tensors on the way, of those that were made here nothing
        waiting = [(port.tensor, len(self._made))]
        while waiting:
            number, at = waiting.pop()
            if number is None or number in found:
                continue
            given = self._givers(number, at, place)
            found[number] = given or []
            if given is None:
                waiting += [(parent, number) for parent in self._made[number].parents]
        sources = [source for given in found.values() for source in given]
        join = _joins(found, self._made).get(-1 if port.tensor is None else port.tensor, -1)
        is_met = join >= 0 and not found[join]
        return sources, self._joins.setdefault(join, f"{target.site} {port.name}") if is_met else ""

    def _givers(self, tensor: int, at: int, place: int) -> list[Source] | None:
        """The last child that gave the tensor, among those that had ended when there were `at` tensors; else who did.

        None if operations of the call itself made it.
        """
        for own, call, name in reversed(self._given.get(tensor, ())):
            if own < place and call.end <= at:
                return [(call, name)]
        if tensor in self._inputs:
            return [(self._around, self._inputs[tensor])]
        return None if self._made[tensor].call is self._around else list(self._elsewhere(tensor))

    def _elsewhere(self, tensor: int) -> Iterator[Source]:
        """The call that made a tensor which was neither given nor taken here: it went through an attribute, say."""
        maker = self._made[tensor].call
        outside = _around(self._around)
        while maker is not None:
            if maker.parent is self._around or (maker is not self._around and maker.parent in outside):
                yield maker, next((port.name for port in maker.outputs if port.tensor == tensor), "")
                return
            maker = maker.parent


def _joins(given: Mapping[int, list[Source]], made: Sequence[Made]) -> dict[int, int]:
    """For each tensor the one in which all met that it was made from: what is computed of one alone stands for it."""
    joins: dict[int, int] = {}
    for number in sorted(given):  # what a tensor is made from comes before it
        met = {joins[parent] for parent in made[number].parents if parent in joins}
        if given[number] or met:
            joins[number] = number if given[number] or len(met) > 1 else met.pop()
    return joins
