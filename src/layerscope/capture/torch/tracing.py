"""Tracers beside a training, which their errors must not reach: operations as `capture/core` reads them."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any, ParamSpec

from torch import Tensor, nn

from layerscope.capture.torch.trace.compiled_calls import leave, sink
from layerscope.capture.torch.trace.functions import may_take_fused_path
from layerscope.capture.torch.trace.op_graph import EXTERNALS, PARENTS
from layerscope.capture.torch.trace.op_recorder import OpRecorder
from layerscope.capture.torch.trace.tracer import Tracer

P = ParamSpec("P")
_MOST_OPERATIONS = 300_000  # in a step: a training loop may do much between two


class ForgivingTracer(Tracer):
    """A tracer whose errors do not reach the training: it gives up instead. See `core.framework.Operations`."""

    def __init__(self, model: nn.Module | None) -> None:
        super().__init__(model, keep=False, gradients=False)
        self.ops.forgiving = True

    @property
    def trouble(self) -> Exception | None:
        """Why the operations are not known, if they are not."""
        return self.ops.trouble

    def __len__(self) -> int:
        return len(self.graph.nodes)

    def node_of(self, tensor: Tensor) -> int | None:
        """The node of a tensor; None if no traced operation made it."""
        return self.graph.memory.node_of(tensor)

    def add(self, tensor: Tensor) -> int:
        """The node of a tensor; one that came from outside becomes a node now."""
        return self.graph.node_of(tensor)

    def parents(self, node: int) -> tuple[int, ...]:
        """The nodes that an operation made this one of."""
        numbers: tuple[int, ...] = self.graph.nodes.rows[node][PARENTS][1::2]
        return numbers

    def parameters(self, node: int) -> Iterator[Tensor]:
        """Parameters and buffers that it used beside."""
        return (self.graph.externals.all[number].tensor for number in self.graph.nodes.rows[node][EXTERNALS][1::2])

    def leave(self) -> None:
        """Trace no more."""
        self.__exit__()

    def before_module(self, module: nn.Module, args: tuple[Any, ...], frame: FrameType) -> None:
        """Begin the call of a module."""
        self._attempt(super().before_module, module, args, frame)

    def after_module(self, module: nn.Module, result: object, frame: FrameType) -> None:
        """End the call of a module."""
        self._attempt(super().after_module, module, result, frame)

    def _attempt(self, listen: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call the function, unless something went wrong before; if something goes wrong now, remember it."""
        if self.ops.trouble is None:
            try:
                listen(*args, **kwargs)
            except Exception as error:  # noqa: BLE001  a bug of ours must not stop a training
                self.ops.trouble = error


def trace_forward(
    module: nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object], frame: FrameType
) -> ForgivingTracer | None:
    """A tracer of a module that is about to be called; None where a mode would keep it from its fused path."""
    if may_take_fused_path(module, args, kwargs):
        return None
    tracer = ForgivingTracer(module)
    tracer.__enter__()
    tracer.before_module(module, args, frame)  # its hooks come too late for this one
    return tracer


class StepTracer(ForgivingTracer):
    """Traces a step on the thread it begins on, below whatever function modes others have entered or will enter."""

    def __init__(self, model: nn.Module | None) -> None:
        super().__init__(model)
        self.ops.most = _MOST_OPERATIONS
        self._thread = threading.get_ident()
        for mode in tuple(_left_behind):  # at most a few, of steps that ended on another thread: one may lie on this
            leave(mode)
        self.__enter__()
        sink(self.ops)
        _entered.add(self)

    def leave(self) -> None:
        """Trace no more; what cannot be removed from the stack of another thread does nothing there."""
        if threading.get_ident() != self._thread:
            self.give_up("the step ended on another thread")
            _left_behind.add(self.ops)
        _entered.discard(self)
        super().leave()

    def give_up(self, reason: str) -> None:
        """Look at nothing more; the stack of function modes is left as it is."""
        if self.trouble is None:
            self.ops.trouble = RuntimeError(reason)


def _forked() -> None:
    """In a process that was forked in the middle of a step nothing ends the step: its tracer would remember all."""
    for tracer in tuple(_entered):
        tracer.give_up("the process was forked")


_entered: weakref.WeakSet[StepTracer] = weakref.WeakSet()
_left_behind: weakref.WeakSet[OpRecorder] = weakref.WeakSet()
if hasattr(os, "register_at_fork"):  # not where processes cannot be forked
    os.register_at_fork(after_in_child=_forked)
