"""The order in which the parts of a run's graph are drawn, group by group, whichever of them are open."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from layerscope.graph.collapse import Hop
from layerscope.graph.module_nodes import ModuleBox, ModuleBoxes, Wire
from layerscope.graph.order import LayoutFlow, Ordering, flows_of, order

NO_TENSOR = -1


@dataclass(frozen=True, slots=True)
class Ordered:
    """The ordering of one group, and how its tensors are called on the other side of its children's borders."""

    ordering: Ordering
    into: Mapping[tuple[int, int], int]  # child and tensor → the tensor inside the child
    out_of: Mapping[int, int]  # tensor → the tensor inside the child that it comes from


class CallOrder:
    """Orderings of all groups; tensors below zero only keep things in order and are not drawn."""

    def __init__(self, parts: ModuleBoxes) -> None:
        self._parts = parts
        self._numbers: dict[object, int] = {}
        self._hops: dict[int, list[Hop]] = defaultdict(list)
        self._enters: dict[tuple[int, int], int] = {}  # child and tensor → the tensor inside
        self._leaves: dict[tuple[int, str], int] = {}  # call and port → the tensor inside
        self._ports: dict[int, tuple[int, str]] = {}  # tensor → the call and port it comes from
        self._same = self._same_ports()
        for call, wires in parts.wires.items():
            for wire in wires:
                self._add(call, wire)
        self._known: dict[int, Ordered] = {}

    def group(self, index: int) -> Ordered:
        """The ordering of one part with children; made when first asked for, since a large model has many."""
        if index not in self._known:
            self._known[index] = self._ordered(self._parts.parts[index])
        return self._known[index]

    def inputs(self, call: int) -> dict[str, int]:
        """The tensor that comes in at each input of a call."""
        found: dict[str, int] = {}
        for wire in self._parts.wires.get(call, ()):
            if wire.source is None:
                found[wire.source_port] = self._tensor(call, wire)
        return found

    def outputs(self, call: int) -> dict[str, int]:
        """The tensor inside a call that goes out at each output."""
        return {port: tensor for (at, port), tensor in self._leaves.items() if at == call}

    def _same_ports(self) -> dict[tuple[int, str], str]:
        """The inputs of calls that are given one and the same tensor, by the first of them."""
        first: dict[tuple[int, int | None, str], str] = {}
        same: dict[tuple[int, str], str] = {}
        for wires in self._parts.wires.values():
            for wire in wires:
                if wire.target is not None and not wire.back:
                    key = (wire.target, wire.source, wire.source_port)
                    same[wire.target, wire.target_port] = first.setdefault(key, wire.target_port)
        return same

    def _number(self, key: object) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def _inner(self, call: int, port: str) -> int:
        return self._number((call, "in", self._same.get((call, port), port)))

    def _tensor(self, call: int, wire: Wire) -> int:
        if wire.source is None:
            return self._inner(call, wire.source_port)
        tensor = self._number((wire.source, wire.source_port))
        self._ports[tensor] = (wire.source, wire.source_port)
        return tensor

    def _chain(self, call: int, part: int | None) -> list[int]:
        """The parts from just inside a call down to one of its own, through repeats and sections."""
        chain: list[int] = []
        while part is not None and part != call:
            chain.append(part)
            part = self._parts.parts[part].parent
        return chain[::-1]

    def _add(self, call: int, wire: Wire) -> None:
        tensor = self._tensor(call, wire)
        if wire.target is None:
            self._leaves[call, wire.target_port] = tensor
        elif self._parts.parts[wire.target].children:
            self._enters[wire.target, tensor] = self._inner(wire.target, wire.target_port)
        upper, lower = self._chain(call, wire.source), self._chain(call, wire.target)
        group = call
        while len(upper) > 1 and len(lower) > 1 and upper[0] == lower[0]:
            group, upper, lower = upper[0], upper[1:], lower[1:]
        for outer, inner in pairwise(upper):
            self._hops[outer].append(Hop(outer, tensor, inner, None))
        first = upper[0] if upper else None
        self._hops[group].append(Hop(group, tensor, first, lower[0] if lower else None, wire.back))
        for outer, inner in pairwise(lower):
            self._hops[outer].append(Hop(outer, tensor, None, inner))

    def _ordered(self, part: ModuleBox) -> Ordered:
        flows = flows_of(dict.fromkeys(self._hops[part.index]))
        if not flows:  # nothing is known to flow: one below the other
            flows = tuple(LayoutFlow(-2 - at, a, (b,)) for at, (a, b) in enumerate(pairwise(part.children)))
        into = {
            (child, flow.tensor): self._into(child, flow.tensor)
            for flow in flows
            for child in (*flow.targets, *flow.back)
        }
        out_of = {flow.tensor: self._out_of(flow.source, flow.tensor) for flow in flows if flow.source is not None}
        entries = self._crossings(into, top=True)
        leaving = {(flow.source, flow.tensor): out_of[flow.tensor] for flow in flows if flow.source is not None}
        exits = self._crossings(leaving, top=False)
        return Ordered(order(part.children, flows, (), entries, exits), into, out_of)

    def _crossings(self, inner: Mapping[tuple[int, int], int], *, top: bool) -> dict[tuple[int, int], float]:
        """Where on the borders of children tensors cross, as their own orderings have it; the only one is central."""
        by_child: dict[int, set[int]] = defaultdict(set)
        for (child, _), tensor in inner.items():
            by_child[child].add(tensor)
        found: dict[tuple[int, int], float] = {}
        for (child, tensor), inside in inner.items():
            if len(by_child[child] - {NO_TENSOR}) > 1 and inside != NO_TENSOR:
                tensors = self.group(child).ordering.ports(top=top)
                if inside in tensors:
                    found[child, tensor] = (tensors.index(inside) + 0.5) / len(tensors) - 0.5
        return found

    def _into(self, child: int, tensor: int) -> int:
        if self._parts.parts[child].is_group:
            return tensor
        return self._enters.get((child, tensor), NO_TENSOR)

    def _out_of(self, child: int, tensor: int) -> int:
        if self._parts.parts[child].is_group:
            return tensor
        return self._leaves.get(self._ports.get(tensor, (-1, "")), NO_TENSOR)
