"""Replaces results of operations: during the first execution of a forward, or in a second one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from layerscope.capture.torch.trace.functions import Function, FunctionFacts, facts
from layerscope.capture.torch.trace.op_graph import Nodes, OpGraph, Row
from layerscope.capture.torch.trace.op_recorder import Change, Editor
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


class LiveEditor(Editor):
    """Applies edits to operations that their selectors match."""

    def __init__(self, graph: OpGraph, edits: Mapping[When, Change | Tensor]) -> None:
        super().__init__()
        self._graph = graph
        self._edits = [(when, _change(when, change)) for when, change in edits.items()]
        self._unmet = dict.fromkeys(edits)
        self._names: dict[str, None] = {}  # functions and modules seen so far

    def changes(self, node: int, call: tuple[FunctionFacts, Row], position: int, tensor: Tensor) -> Iterator[Change]:
        """The edits whose selector matches."""
        about, arguments = call
        module = self._graph.module
        names = tuple(self._graph.externals.all[number].name for number in arguments[3][1::2])
        shape = tuple(tensor.shape) if not tensor.is_nested else ()
        running = RunningOp(node, about.name, module.path, module.number, position, shape, tensor.dtype, names)
        self._names[running.function] = self._names[running.module] = None
        for when, change in self._edits:
            if _matches(when, running):
                self._unmet.pop(when, None)
                yield change

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
        f"The edit of {when!r} is {type(change).__name__}: give a function of the result, or a tensor to replace it."
    )


@dataclass(frozen=True, slots=True)
class Edits:
    """Changes of the second forward; operations are identified by their index in the first."""

    outputs: Mapping[int, Change] = field(default_factory=dict)  # maps the result to another
    functions: Mapping[int, Function] = field(default_factory=dict)  # called instead of the operation's function
    parameters: Mapping[str, Tensor] = field(default_factory=dict)


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
        editor = _IndexedEditor(tracer.graph.nodes, edits)
        again.ops.editor = editor
        with again:
            result = run(again)
        editor.check_all_met()
    return again, result


class _IndexedEditor(Editor):
    """Applies edits by index, and checks that the control flow is unchanged up to the last of them."""

    def __init__(self, before: Nodes, edits: Edits) -> None:
        super().__init__()
        self._before = before
        self._edits = edits
        self._operations = {*edits.outputs, *edits.functions}
        self._last = max(self._operations, default=-1)
        for index in self._operations:
            if not 0 <= index < len(before):
                raise SelectError(f"There is no operation {index}: the pass has {len(before)}, counted from 0.")
            if before[index].function is None:
                raise ArgumentError(
                    f"Operation {index} is an {before[index].facts.name}: nothing computes it. Edit what uses it, or "
                    "pass another input."
                )

    def function(self, node: int, function: Function) -> Function:
        """The function to call for a node."""
        other = self._edits.functions.get(node)
        if other is None or facts(function).name != self._before[node].facts.name:
            return function
        self.edited.add(node)
        return other

    def changes(self, node: int, call: tuple[FunctionFacts, Row], position: int, tensor: Tensor) -> Iterator[Change]:
        """The edit of the result, if it has one."""
        if position == 0 and node <= self._last:
            self._check_way(node, *call)
        if node in self._edits.outputs:
            yield self._edits.outputs[node]

    def check_all_met(self) -> None:
        """Raise if an edit was not applied."""
        if missed := sorted(self._operations - self.edited):
            name = self._before[missed[0]].facts.name
            raise StateError(
                f"Operation {missed[0]} ({name}) was not reached again: the pass ended, or took another way, before it."
            )

    def _check_way(self, node: int, about: FunctionFacts, arguments: Row) -> None:
        before = self._before[node]
        if (about.name, arguments[2]) != (before.facts.name, before.parents):
            raise StateError(
                f"The pass took another way before operation {self._last}, which is edited: operation {node} was "
                f"{before.facts.name} of {[*before.parents[1::2]]}, and now is {about.name} of "
                f"{[*arguments[2][1::2]]}. Edit earlier operations one at a time, or make the model's choices not "
                "depend on them."
            )


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
