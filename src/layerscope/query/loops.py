"""Which operations are the same place of a loop, and whether a loop feeds itself.

An *anchor* is an operation that uses parameters or buffers. Operations with the same parameters repeat each other. An
operation without parameters repeats an earlier one of the same line of code only if no anchor lies between the two, or
if the anchors between them repeat as well: `x = relu(linear(x))` over three different linears is no loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from functools import reduce
from operator import or_

from layerscope.operations import Operation, Outline, Role, field_of_all

Anchor = int | None  # number of an anchor's identity: equal where the same parameters are used the same way

#: Functions that take a part of a parameter: other arguments are other weights.
_SELECTING = frozenset(("getitem", "select", "narrow", "index_select", "unbind", "chunk", "split", "slice"))


def places(outlines: Sequence[Outline], classes: Mapping[str, str]) -> list[object]:
    """A key for each operation, equal for operations that repeat one another; `classes` are those of the modules."""
    anchors = _anchors(outlines, classes)
    before, after = _neighbors(anchors)
    latest = _latest(outlines, anchors)
    found: list[object] = []
    lines: list[object] = []
    for at, (function, position, parameters, site, path, arguments, _, _) in enumerate(outlines):
        lines.append(line := (function, position, site, path))
        if parameters:
            found.append((function, position, _own(parameters, path), arguments if function in _SELECTING else ()))
        else:
            found.append((line, anchors[at]) if anchors[at] is not None else (line, latest[at], before[at]))
    joined = _join_first_iterations(lines, found, anchors, after)
    return [joined.root(place) for place in found]


class Flow(str, Enum):
    """How the layers of a pass hang together."""

    FEEDFORWARD = "feedforward"  # no pass of a layer is computed from an earlier pass of it
    LOOP = "a loop without parameters"  # such as a sum over a list, or the scan of a state-space model
    RECURRENT = "recurrent"  # a layer with parameters is computed from an earlier pass of itself


def flow(operations: Sequence[Operation], layers: Sequence[int], members: Sequence[Sequence[int]]) -> Flow:
    """Whether a pass of some layer is computed from an earlier pass of it, out of an input or a parameter."""
    bits = {layer: 1 << number for number, layer in enumerate(_repeated(members))}
    functions, parameters, roles = (field_of_all(operations, name) for name in ("function", "parameters", "role"))
    from_layers: list[int] = []  # the repeated layers that each operation is computed from
    is_fed: list[bool] = []  # whether each is computed from an input or a parameter
    found = Flow.FEEDFORWARD
    for index, parents in enumerate(field_of_all(operations, "parents")):
        taken = () if _takes_only_the_shape(functions[index]) else parents
        sources = reduce(or_, [from_layers[parent] for parent in taken], 0)
        own = bits.get(layers[index], 0)
        fed = bool(parameters[index]) or roles[index] is Role.INPUT or any(is_fed[parent] for parent in taken)
        if sources & own and fed:
            if parameters[index]:
                return Flow.RECURRENT
            found = Flow.LOOP
        from_layers.append(sources | (own if fed else 0))
        is_fed.append(fed)
    return found


def _repeated(members: Iterable[Sequence[int]]) -> list[int]:
    return [layer for layer, each in enumerate(members) if len(each) > 1]


def _takes_only_the_shape(function: str) -> bool:
    return function.endswith("_like") or function.startswith("new_")


def _anchors(outlines: Iterable[Outline], classes: Mapping[str, str]) -> list[Anchor]:
    """What each operation uses, as a number; None where it uses neither parameters nor buffers."""
    numbers: dict[object, int] = {}
    found: list[Anchor] = []
    for function, position, parameters, site, path, arguments, _, buffers in outlines:
        key: object = None
        if parameters:
            part = (position, arguments) if function in _SELECTING else ()
            key = (function, _own(parameters, path), part)
        elif buffers:
            key = (function, buffers, site)
        elif site is not None and function == classes.get(path):  # a module whose inside was not looked at
            key = (function, path)
        found.append(None if key is None else numbers.setdefault(key, len(numbers)))
    return found


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
    found: list[Anchor] = []
    for index, outline in enumerate(outlines):
        at = max([indices[parent] for parent in outline[6]], default=-1)
        found.append(None if at < 0 else anchors[at])
        indices.append(at if anchors[index] is None else index)
    return found


def _join_first_iterations(
    lines: Sequence[object], found: Sequence[object], anchors: Sequence[Anchor], after: Sequence[Anchor]
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
            if joined.root(found[here]) == joined.root(found[there]):
                continue
            end = group[at + 2] if at + 2 < len(group) else len(anchors)
            between = {anchor for anchor in anchors[here:there] if anchor is not None}
            if between and between <= set(anchors[there:end]):
                joined.join(found[here], found[there])
    return joined


class _Joined:
    """Keys that were found to be one."""

    def __init__(self) -> None:
        self._parents: dict[object, object] = {}

    def root(self, key: object) -> object:
        while (parent := self._parents.get(key)) is not None:
            key = parent
        return key

    def join(self, one: object, other: object) -> None:
        self._parents[self.root(other)] = self.root(one)
