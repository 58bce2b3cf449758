"""The nodes of a pass, stored so that the garbage collector has nothing to walk through.

A row is a plain tuple of numbers, strings and plain tuples: the collector looks at such a tuple once and never again.
Functions and module calls, which it would have to follow, are kept beside the rows and known by number.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from layerscope.capture.torch.trace.functions import Facts, Function
from layerscope.capture.torch.trace.modulecalls import Frames, ModuleCall

#: The fields of a node, but: the first two are one number, that of the maker; keyword arguments lie flat in a tuple,
#: name, value, name, value …; the module call is a number.
Row = tuple[Any, ...]
Maker = tuple[Facts, Function | None]


class Node(NamedTuple):
    """One tensor of the pass, and the call it came from."""

    facts: Facts
    function: Function | None  # None for a tensor whose making was not seen: an input, a constant
    args: tuple[Any, ...]  # Any: the user's own arguments, with holes for tensors
    kwargs: dict[str, Any]
    parents: tuple[int | str, ...]  # argument, node, argument, node …
    externals: tuple[int | str, ...]  # argument, number of a parameter or buffer …
    module: ModuleCall
    frames: Frames
    elapsed_s: float
    grad_mode: bool
    autocast: str | None
    random_state: Tensor | None
    lead: int  # the first node of the call
    position: int  # which of the call's results
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    grad_fn: str | None


def pairs(flat: Row) -> Iterator[tuple[Any, Any]]:
    """Name and value, from a tuple in which they alternate."""
    return zip(flat[::2], flat[1::2], strict=True)


class Nodes:
    """The nodes in the order of execution."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.calls: list[ModuleCall] = []  # in the order in which they began; the first is the block around
        self.makers: list[Maker] = []
        self._numbers: dict[Maker, int] = {}

    def maker(self, about: Facts, function: Function | None) -> int:
        """The number of a function, which a row begins with."""
        number = self._numbers.get((about, function))
        if number is None:
            number = self._numbers[about, function] = len(self.makers)
            self.makers.append((about, function))
        return number

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Node:
        row = self.rows[index]
        about, function = self.makers[row[0]]
        named = dict(pairs(row[2]))
        # As `Node(…)`, without the detour through a Python function.
        return tuple.__new__(Node, (about, function, row[1], named, *row[3:5], self.calls[row[5]], *row[6:]))

    def __iter__(self) -> Iterator[Node]:
        return (self[index] for index in range(len(self.rows)))

    def replace(self, index: int, **fields: Any) -> None:  # Any: each field has its own type
        """Put other facts in a node's place."""
        node = self[index]._replace(**fields)
        call = next(number for number, call in enumerate(self.calls) if call is node.module)
        kwargs = tuple(part for pair in node.kwargs.items() for part in pair)
        self.rows[index] = (self.maker(node.facts, node.function), node.args, kwargs, *node[4:6], call, *node[7:])
