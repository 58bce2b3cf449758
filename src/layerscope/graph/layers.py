"""Layers: operations that repeat one another, their names and relations, and whether a loop feeds itself.

An *anchor* is an operation that uses parameters or buffers. Operations with the same parameters repeat each other. An
operation without parameters repeats an earlier one of the same line of code only if no anchor lies between the two, or
if the anchors between them repeat as well: `x = relu(linear(x))` over three different linears is no loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import reduce
from operator import or_
from typing import NamedTuple

from layerscope.model.trace_record import Operation, Outline, Outlined, Role, TraceRecord, field_of_all

Anchor = int | None  # number of an anchor's identity: equal where the same parameters are used the same way

#: Functions that take a part of a parameter: other arguments are other weights.
_SELECTING = frozenset(("getitem", "select", "narrow", "index_select", "unbind", "chunk", "split", "slice"))


def places(outlines: Sequence[Outline], classes: Mapping[str, str]) -> list[object]:
    """A key for each operation, equal for operations that repeat one another; `classes` are those of the modules."""
    anchors = _anchors(outlines, classes)
    before, after = _neighbors(anchors)
    latest = _latest(outlines, anchors)
    keys: list[object] = []
    lines: list[object] = []
    for at, (function, position, parameters, site, path, arguments, _, _) in enumerate(outlines):
        lines.append(line := (function, position, site, path))
        if parameters:
            keys.append((function, position, _own(parameters, path), arguments if function in _SELECTING else ()))
        else:
            keys.append((line, anchors[at]) if anchors[at] is not None else (line, latest[at], before[at]))
    joined = _join_first_iterations(lines, keys, anchors, after)
    return [joined.root(place) for place in keys]


class Recurrence(str, Enum):
    """How the layers of a pass hang together."""

    FEEDFORWARD = "feedforward"  # no pass of a layer is computed from an earlier pass of it
    LOOP = "a loop without parameters"  # such as a sum over a list, or the scan of a state-space model
    RECURRENT = "recurrent"  # a layer with parameters is computed from an earlier pass of itself


def flow(operations: Sequence[Operation], layers: Sequence[int], members: Sequence[Sequence[int]]) -> Recurrence:
    """Whether a pass of some layer is computed from an earlier pass of it, out of an input or a parameter."""
    bits = {layer: 1 << number for number, layer in enumerate(_repeated(members))}
    functions, parameters, roles = (field_of_all(operations, name) for name in ("function", "parameters", "role"))
    from_layers: list[int] = []  # the repeated layers that each operation is computed from
    is_fed: list[bool] = []  # whether each is computed from an input or a parameter
    recurrence = Recurrence.FEEDFORWARD
    for index, parents in enumerate(field_of_all(operations, "parents")):
        sources_of = () if _takes_only_the_shape(functions[index]) else parents
        sources = reduce(or_, [from_layers[parent] for parent in sources_of], 0)
        own = bits.get(layers[index], 0)
        fed = bool(parameters[index]) or roles[index] is Role.INPUT or any(is_fed[parent] for parent in sources_of)
        if sources & own and fed:
            if parameters[index]:
                return Recurrence.RECURRENT
            recurrence = Recurrence.LOOP
        from_layers.append(sources | (own if fed else 0))
        is_fed.append(fed)
    return recurrence


def _repeated(members: Iterable[Sequence[int]]) -> list[int]:
    return [layer for layer, each in enumerate(members) if len(each) > 1]


def _takes_only_the_shape(function: str) -> bool:
    return function.endswith("_like") or function.startswith("new_")


def _anchors(outlines: Iterable[Outline], classes: Mapping[str, str]) -> list[Anchor]:
    """What each operation uses, as a number; None where it uses neither parameters nor buffers."""
    numbers: dict[object, int] = {}
    anchors: list[Anchor] = []
    for function, position, parameters, site, path, arguments, _, buffers in outlines:
        key: object = None
        if parameters:
            part = (position, arguments) if function in _SELECTING else ()
            key = (function, _own(parameters, path), part)
        elif buffers:
            key = (function, buffers, site)
        elif site is not None and function == classes.get(path):  # a module whose inside was not looked at
            key = (function, path)
        anchors.append(None if key is None else numbers.setdefault(key, len(numbers)))
    return anchors


def _own(parameters: tuple[str, ...], path: str) -> tuple[str, ...]:
    """The parameters of the operation's own module: others, such as a learned first state, are data to it."""
    if len(parameters) == 1 or not path:
        return parameters
    return tuple([name for name in parameters if name.startswith(f"{path}.")]) or parameters


def _neighbors(anchors: Sequence[Anchor]) -> tuple[list[Anchor], list[Anchor]]:
    """The nearest anchor before and after each operation, in the order of execution."""
    before: list[Anchor] = []
    last: Anchor = None
    for anchor in anchors:
        before.append(last)
        last = last if anchor is None else anchor
    after: list[Anchor] = []
    last = None
    for anchor in reversed(anchors):
        after.append(last)
        last = last if anchor is None else anchor
    return before, after[::-1]


def _latest(outlines: Iterable[Outline], anchors: Sequence[Anchor]) -> list[Anchor]:
    """Of the anchors that each operation's arguments were computed from, the one that ran last."""
    indices: list[int] = []  # of the anchor that ran last on the way to each operation, itself included
    latest: list[Anchor] = []
    for index, outline in enumerate(outlines):
        at = max([indices[parent] for parent in outline[6]], default=-1)
        latest.append(None if at < 0 else anchors[at])
        indices.append(at if anchors[index] is None else index)
    return latest


def _join_first_iterations(
    lines: Sequence[object], keys: Sequence[object], anchors: Sequence[Anchor], after: Sequence[Anchor]
) -> _Joined:
    """The first iteration of a loop comes from elsewhere than the others: join it where the same body follows."""
    joined = _Joined()
    groups: dict[object, list[int]] = {}
    for index, anchor in enumerate(after):
        if anchors[index] is None and anchor is not None:
            groups.setdefault((lines[index], anchor), []).append(index)
    for group in groups.values():
        for at in range(len(group) - 1):
            here, there = group[at], group[at + 1]
            if joined.root(keys[here]) == joined.root(keys[there]):
                continue
            end = group[at + 2] if at + 2 < len(group) else len(anchors)
            between = {anchor for anchor in anchors[here:there] if anchor is not None}
            if between and between <= set(anchors[there:end]):
                joined.join(keys[here], keys[there])
    return joined


class _Joined:
    """Keys that are one."""

    def __init__(self) -> None:
        self._parents: dict[object, object] = {}

    def root(self, key: object) -> object:
        while (parent := self._parents.get(key)) is not None:
            key = parent
        return key

    def join(self, one: object, other: object) -> None:
        self._parents[self.root(other)] = self.root(one)


@dataclass(frozen=True, slots=True)
class Naming:
    """The layer, pass and names of every operation."""

    layer: tuple[int, ...]  # of each operation
    number: tuple[int, ...]  # pass of each operation in its layer, from 1
    labels: tuple[str, ...]  # of each layer: "conv2d_3_7"
    members: tuple[tuple[int, ...], ...]  # operations of each layer

    def label(self, operation: int) -> str:
        """Name of one operation: its layer's, with the pass where there are several."""
        layer = self.layer[operation]
        passes = len(self.members[layer])
        return self.labels[layer] if passes == 1 else f"{self.labels[layer]}:{self.number[operation]}"


def name_layers(record: TraceRecord) -> Naming:
    """Layers and names of the operations of a pass."""
    operations = record.operations
    groups = _Groups()
    outlines = [*(operations.outlines() if isinstance(operations, Outlined) else _outlines(record))]
    groups.place(outlines, places(outlines, dict(record.modules)))
    kinds: Counter[str] = Counter()
    labels = []
    for total, function in enumerate(groups.functions):
        kind = function.replace("_", "").lower()
        kinds[kind] += 1
        labels.append(f"{kind}_{kinds[kind]}_{total}")
    return Naming(tuple(groups.layer), tuple(groups.number), tuple(labels), tuple(map(tuple, groups.members)))


def _outlines(record: TraceRecord) -> Iterable[Outline]:
    for op in record.operations:
        site = op.site if op.role is Role.OPERATION else None
        parents = tuple([parent.operation for parent in op.parents])
        path = record.calls[op.call].path
        yield op.function, op.position, op.parameters, site, path, tuple(op.arguments.items()), parents, op.buffers


class _Groups:
    def __init__(self) -> None:
        self.layer: list[int] = []
        self.number: list[int] = []
        self.members: list[list[int]] = []
        self.functions: list[str] = []  # of each layer
        self._by_place: dict[object, int] = {}
        self._by_body: dict[object, int] = {}
        self._last_parents: list[tuple[int, ...]] = []  # of each layer's last pass

    def place(self, outlines: Iterable[Outline], found_places: Iterable[object]) -> None:
        """Give every operation its layer and pass."""
        layers, numbers, members, layer_of = self.layer, self.number, self.members, self.layer.__getitem__
        for index, (outline, place) in enumerate(zip(outlines, found_places, strict=True)):
            function, position, parameters, site, path, arguments, parents, _ = outline
            if site is None:
                layer = self._new(function)
            else:
                body = (function, position, path, arguments, *map(layer_of, parents))
                known = self._by_place.get(place)
                if known is None:
                    known = self._same_body(body, parents) if parents and not parameters else None
                    known = self._by_place[place] = self._new(function) if known is None else known
                layer = known
                self._by_body.setdefault(body, layer)
                self._last_parents[layer] = parents
            layers.append(layer)
            members[layer].append(index)
            numbers.append(len(members[layer]))

    def _new(self, function: str) -> int:
        self.functions.append(function)
        self.members.append([])
        self._last_parents.append(())
        return len(self.members) - 1

    def _same_body(self, body: object, parents: tuple[int, ...]) -> int | None:
        """The layer that followed the same layers in an earlier pass of them."""
        layer = self._by_body.get(body)
        if layer is None:
            return None
        passes, last = ([self.number[p] for p in each] for each in (parents, self._last_parents[layer]))
        return layer if passes != last else None


class Distance(NamedTuple):
    """Steps along the graph, by the shortest and by the longest way."""

    shortest: int
    longest: int

    def __str__(self) -> str:
        return str(self.shortest) if self.shortest == self.longest else f"{self.shortest}-{self.longest}"


class Relations:
    """What follows for each operation from the parents of all."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self._leads = [op.lead for op in operations]
        self.parents = [list(dict.fromkeys(p.operation for p in op.parents)) for op in operations]
        #: the operations that take each one's result, and the arguments they take it as
        self.children: list[dict[int, list[str]]] = [{} for _ in operations]
        for op in operations:
            for parent in op.parents:
                self.children[parent.operation].setdefault(op.index, []).append(parent.argument)
        inputs = {op.index for op in operations if op.role is Role.INPUT}
        outputs = {op.index for op in operations if op.role is Role.OUTPUT}
        forth = range(len(operations))
        #: None where no input, or no output, can be reached
        self.from_input = _distances(forth, self.parents, inputs)
        self.to_output = _distances(reversed(forth), self.children, outputs)

    def is_branch(self, index: int) -> bool:
        """Whether several calls take its result."""
        return len({self._leads[child] for child in self.children[index]}) > 1

    def is_merge(self, index: int) -> bool:
        """Whether it takes several results."""
        return len(self.parents[index]) > 1


def _distances(order: Iterable[int], nearer: Sequence[Collection[int]], ends: Collection[int]) -> list[Distance | None]:
    distances: list[Distance | None] = [None] * len(nearer)
    for index in order:
        if index in ends:
            distances[index] = Distance(0, 0)
        elif known := [distance for other in nearer[index] if (distance := distances[other]) is not None]:
            shortest, longest = zip(*known, strict=True)
            distances[index] = Distance(1 + min(shortest), 1 + max(longest))
    return distances
