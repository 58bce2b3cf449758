"""Replacing results while a pass runs for the first time: by what is known of an operation then."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor

from layerscope.capture.torch.trace.functions import Facts, Function
from layerscope.capture.torch.trace.graph import Graph
from layerscope.capture.torch.trace.nodes import Row
from layerscope.capture.torch.trace.ops import results_of
from layerscope.capture.torch.trace.rerun import edited, replaced
from layerscope.errors import SelectError


@dataclass(frozen=True, slots=True)
class Running:
    """An operation as far as it is known while the pass runs."""

    index: int
    function: str  # "conv2d"
    module: str  # path of the module it happens in, "" for the model itself
    call: int  # 1 in the first call of that module
    position: int  # which of the call's results
    shape: tuple[int, ...]
    dtype: torch.dtype
    parameters: tuple[str, ...]  # and buffers


When = str | Callable[[Running], bool]
Change = Callable[[Tensor], Tensor]


class LiveEditor:
    """Applies edits wherever their selector says so."""

    def __init__(self, graph: Graph, edits: Mapping[When, Change | Tensor]) -> None:
        self.edited: set[int] = set()  # nodes whose result is not what their function gave
        self._graph = graph
        self._edits = [(when, _change(when, change)) for when, change in edits.items()]
        self._unmet = dict.fromkeys(edits)
        self._names: dict[str, None] = {}  # functions and modules that were met

    def function(self, node: int, function: Function) -> Function:
        """The function to call: its own."""
        return function

    def result(self, node: int, call: tuple[Facts, Row], result: Any, written: list[Tensor]) -> Any:
        """What the call is to give."""
        for position, tensor in enumerate(results_of(result, written)):
            running = self._running(node, call, position, tensor)
            self._names[running.function] = self._names[running.module] = None
            current = tensor
            for when, change in self._edits:
                if _matches(when, running):
                    self._unmet.pop(when, None)
                    self.edited.add(running.index)
                    other = edited(change, current, running.index)
                    result = replaced(result, current, other, written)
                    current = current if any(current is target for target in written) else other
        return result

    def check_all_met(self) -> None:
        """Every selector has matched some operation."""
        for when in self._unmet:
            if not isinstance(when, str):
                raise SelectError("An edit was never applied: its function said yes to no operation of the pass.")
            names = [name for name in self._names if name]
            near = difflib.get_close_matches(when, names, n=3, cutoff=0.4) or names[:3]
            raise SelectError(
                f"The edit of {when!r} was never applied: no operation that ran is of a function or in a module of "
                f"that name. Near it: {', '.join(near) or 'nothing, as none ran'}."
            )

    def _running(self, node: int, call: tuple[Facts, Row], position: int, tensor: Tensor) -> Running:
        about, taken = call
        module = self._graph.module
        names = tuple(self._graph.externals.all[number].name for number in taken[3][1::2])
        shape = tuple(tensor.shape) if not tensor.is_nested else ()
        return Running(node + position, about.name, module.path, module.number, position, shape, tensor.dtype, names)


def _matches(when: When, running: Running) -> bool:
    if not isinstance(when, str):
        return bool(when(running))
    return any(name == when or fnmatchcase(name, when) for name in (running.function, running.module))


def _change(when: When, change: Change | Tensor) -> Change:
    if not isinstance(when, str) and not callable(when):
        raise SelectError(f"An edit is chosen by a name, a glob or a function, not by {type(when).__name__}.")
    if isinstance(change, Tensor):
        return lambda result: change
    if callable(change):
        return change
    raise SelectError(
        f"The edit of {when!r} is {type(change).__name__}: give a function of the result, or a tensor for its place."
    )
