"""Replaces results of operations: during the first execution of a forward, or in a second one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from layerscope.capture.torch.trace.arguments import rebuild
from layerscope.capture.torch.trace.functions import Function, FunctionFacts, facts
from layerscope.capture.torch.trace.op_graph import Nodes, OpGraph, Row
from layerscope.capture.torch.trace.op_recorder import results_of
from layerscope.capture.torch.trace.tracer import Tracer
from layerscope.errors import ArgumentError, SelectError, StateError
from layerscope.model.patterns import nearest


@dataclass(frozen=True, slots=True)
class RunningOp:
    """An operation as known while the forward runs."""

    index: int
    function: str  # "conv2d"
    module: str  # path of the enclosing module, "" for the model itself
    call: int  # 1 in the first call of that module
    position: int  # index among the results of the call
    shape: tuple[int, ...]
    dtype: torch.dtype
    parameters: tuple[str, ...]  # and buffers


When = str | Callable[[RunningOp], bool]
Change = Callable[[Tensor], Tensor]


class LiveEditor:
    """Applies edits to operations that their selectors match."""

    def __init__(self, graph: OpGraph, edits: Mapping[When, Change | Tensor]) -> None:
        self.edited: set[int] = set()  # nodes whose result was replaced
        self._graph = graph
        self._edits = [(when, _change(when, change)) for when, change in edits.items()]
        self._unmet = dict.fromkeys(edits)
        self._names: dict[str, None] = {}  # functions and modules seen so far

    def function(self, node: int, function: Function) -> Function:
        """The function to call: unchanged."""
        return function

    def result(self, node: int, call: tuple[FunctionFacts, Row], result: Any, written: list[Tensor]) -> Any:
        """The result that the call returns."""
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
        """Raise if a selector matched no operation."""
        for when in self._unmet:
            if not isinstance(when, str):
                raise SelectError("An edit was never applied: its function said yes to no operation of the pass.")
            names = [name for name in self._names if name]
            raise SelectError(
                f"The edit of {when!r} was never applied: no operation that ran is of a function or in a module of "
                f"that name. {nearest(when, names)}"
            )

    def _running(self, node: int, call: tuple[FunctionFacts, Row], position: int, tensor: Tensor) -> RunningOp:
        about, taken = call
        module = self._graph.module
        names = tuple(self._graph.externals.all[number].name for number in taken[3][1::2])
        shape = tuple(tensor.shape) if not tensor.is_nested else ()
        return RunningOp(node + position, about.name, module.path, module.number, position, shape, tensor.dtype, names)


def _matches(when: When, running: RunningOp) -> bool:
    if not isinstance(when, str):
        return bool(when(running))
    return any(name == when or fnmatchcase(name, when) for name in (running.function, running.module))


def _change(when: When, change: Change | Tensor) -> Change:
    if not isinstance(when, str) and not callable(when):
        raise ArgumentError(f"An edit is chosen by a name, a glob or a function, not by {type(when).__name__}.")
    if isinstance(change, Tensor):
        return lambda result: change
    if callable(change):
        return change
    raise ArgumentError(
        f"The edit of {when!r} is {type(change).__name__}: give a function of the result, or a tensor for its place."
    )


@dataclass(frozen=True, slots=True)
class Edits:
    """Changes of the second forward; operations are identified by their index in the first."""

    outputs: Mapping[int, Callable[[Tensor], Tensor]] = field(default_factory=dict)  # maps the result to another
    functions: Mapping[int, Function] = field(default_factory=dict)  # called instead of the operation's function
    parameters: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def operations(self) -> set[int]:
        """The operations that are edited."""
        return {*self.outputs, *self.functions}


def rerun(tracer: Tracer, run: Callable[[Tracer], object], edits: Edits) -> tuple[Tracer, object]:
    """Repeat the forward: returns the new tracer and the result of `run`.

    `run` is called with the new tracer, inside its block, and repeats the first forward. Random numbers are those of
    the first forward; buffers are restored afterwards.
    """
    with ExitStack() as stack:
        if tracer.model is not None:
            stack.enter_context(_parameters_replaced(tracer.model, edits.parameters))
            stack.enter_context(_buffers_restored(tracer.model))
        elif edits.parameters:
            raise StateError("Parameters cannot be replaced: the trace is that of a function, not of a model.")
        stack.callback(torch.set_rng_state, torch.get_rng_state())
        torch.set_rng_state(tracer.random_state)
        again = tracer.twin()
        editor = _Editor(tracer.graph.nodes, edits)
        again.ops.editor = editor
        with again:
            result = run(again)
        editor.check_all_met()
    return again, result


class _Editor:
    """Applies the edits, and checks that the control flow is unchanged up to the last of them."""

    def __init__(self, before: Nodes, edits: Edits) -> None:
        self._before = before
        self._edits = edits
        self._last = max(edits.operations, default=-1)
        self.edited: set[int] = set()  # nodes whose result was replaced
        unknown = [number for number in edits.operations if not 0 <= number < len(before)]
        if unknown:
            raise SelectError(f"There is no operation {unknown[0]}: the pass has {len(before)}, counted from 0.")
        given = [number for number in edits.operations if before[number].function is None]
        if given:
            name = before[given[0]].facts.name
            raise ArgumentError(
                f"Operation {given[0]} is an {name}: nothing computes it. Edit what uses it, or pass another input."
            )

    def function(self, node: int, function: Function) -> Function:
        """The function to call for a node."""
        other = self._edits.functions.get(node)
        if other is None or facts(function).name != self._before[node].facts.name:
            return function
        self.edited.add(node)
        return other

    def result(self, node: int, call: tuple[FunctionFacts, Row], result: Any, written: list[Tensor]) -> Any:
        """The result that the call returns."""
        results = results_of(result, written)
        if not results or node > self._last:
            return result
        self._check_way(node, *call)
        for position, tensor in enumerate(results):
            edit = self._edits.outputs.get(node + position)
            if edit is not None:
                self.edited.add(node + position)
                result = replaced(result, tensor, edited(edit, tensor, node + position), written)
        return result

    def check_all_met(self) -> None:
        """Raise if an edit was not applied."""
        if missed := sorted(self._edits.operations - self.edited):
            name = self._before[missed[0]].facts.name
            raise StateError(
                f"Operation {missed[0]} ({name}) was not reached again: the pass ended, or took another way, before it."
            )

    def _check_way(self, node: int, about: FunctionFacts, taken: Row) -> None:
        before = self._before[node]
        if (about.name, taken[2]) != (before.facts.name, before.parents):
            raise StateError(
                f"The pass took another way before operation {self._last}, which is edited: operation {node} was "
                f"{before.facts.name} of {[*before.parents[1::2]]}, and now is {about.name} of {[*taken[2][1::2]]}. "
                "Edit earlier operations one at a time, or make the model's choices not depend on them."
            )


def edited(edit: Callable[[Tensor], Tensor], tensor: Tensor, node: int) -> Tensor:
    """The edited result."""
    other = edit(tensor)
    if not isinstance(other, Tensor):
        raise ArgumentError(f"The edit of operation {node} gave {type(other).__name__}. It must give a tensor.")
    return other


def replaced(result: Any, old: Tensor, new: Tensor, written: list[Tensor]) -> Any:
    """The result with one tensor replaced; an in-place result is overwritten, because other code refers to it."""
    if any(tensor is old for tensor in written):
        old.copy_(new)
        return result

    def exchange(value: Any, at: str) -> Any:
        return new if value is old else rebuild(value, at, exchange)

    return exchange(result, "")


@contextmanager
def _parameters_replaced(model: nn.Module, values: Mapping[str, Tensor]) -> Iterator[None]:
    """A `with` block in which the model's modules use other parameters."""
    known = dict(model.named_parameters(remove_duplicate=False))
    with ExitStack() as stack:
        for name, value in values.items():
            if name not in known:
                raise SelectError(f"The model has no parameter {name!r}. {nearest(name, known)}")
            old = known[name]
            if old.shape != value.shape:
                raise ArgumentError(f"{name} has shape {tuple(old.shape)}, and its replacement {tuple(value.shape)}.")
            new = nn.Parameter(value.detach().to(old.dtype), requires_grad=old.requires_grad)
            for module in model.modules():
                for key in [key for key, parameter in module._parameters.items() if parameter is old]:
                    stack.callback(module._parameters.__setitem__, key, old)
                    module._parameters[key] = new
        yield


@contextmanager
def _buffers_restored(model: nn.Module) -> Iterator[None]:
    """A `with` block that restores buffers, such as running statistics, at its end."""
    saved = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, values in saved:
                buffer.copy_(values)
