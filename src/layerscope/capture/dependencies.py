"""What is known of the dependencies in steps of each type, so that not every step has to be traced.

Which tensors are named, in which order, tells most of what a step does. Steps of a type are traced until two in a row
gave what was known before, and from then on more and more rarely, for control flow that naming does not show. A step
that was not traced and is of a new order is written with what was seen of it, and again when one like it was traced.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from layerscope.records import Link, NamedNode, Sink, StepInfo

Graphs = tuple[tuple[tuple[NamedNode, ...], tuple[Link, ...]] | None, ...]  # of iteration 0, 1 …; None: nothing named
_SURE = 2  # steps that gave what was known
_RARELY = 10  # the factor between one check and the next, from then on
_MOST_WAITING = 16
_MOST_KNOWN = 4096


@dataclass(frozen=True, slots=True)
class Dependence:
    """What a step showed of how the tensors named in it depend on each other."""

    order: int  # a hash of what was named in which order
    graphs: Graphs  # None between the lines: without links where the step was not traced
    whole: bool  # traced from its beginning to its end


class Book:
    """Graphs by the order in which tensors were named, and how sure that is for each type of step."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.known: dict[int, tuple[int, ...]] = {}
        self._sure: dict[str, int] = {}  # steps of the type since one had something new
        self._waiting: list[tuple[StepInfo, int]] = []  # written, but of an order whose graphs are not known

    def wants(self, type: str) -> bool:
        """Whether the next step of the type is to be traced."""
        sure = self._sure.get(type, 0)
        while sure >= _SURE and sure % _RARELY == 0:
            sure //= _RARELY
        return sure < _SURE

    def learn(self, type: str, found: Dependence) -> None:
        """Take in what a step showed."""
        before = self.known.get(found.order)
        if found.whole:
            self.known[found.order] = self._numbers(found)
            if len(self.known) > _MOST_KNOWN:
                del self.known[next(iter(self.known))]
        same = before is not None and before == self.known.get(found.order)
        self._sure[type] = self._sure.get(type, 0) + 1 if same else 0
        if found.whole:
            self._settle(found.order)

    def graphs(self, found: Dependence) -> tuple[int, ...]:
        """Numbers of the graphs of a step, as far as they are known."""
        return self.known.get(found.order) or self._numbers(found)

    def put(self, info: StepInfo, found: Dependence) -> None:
        """Hand over the record of a step, and once more when its graphs are known: the last one counts."""
        self._sink.put(info)
        if found.order not in self.known:
            self._waiting = [*self._waiting[1 - _MOST_WAITING :], (info, found.order)]

    def _settle(self, order: int) -> None:
        for info, its_order in self._waiting:
            if its_order == order and info.graphs != self.known[order]:
                self._sink.put(replace(info, graphs=self.known[order]))
        self._waiting = [waiting for waiting in self._waiting if waiting[1] != order]

    def _numbers(self, found: Dependence) -> tuple[int, ...]:
        return tuple(-1 if graph is None else self._sink.dependencies_id(*graph) for graph in found.graphs)
