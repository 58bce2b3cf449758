"""Module calls during a forward. One pair of global hooks serves every tracer of the process."""

from __future__ import annotations

import sys
import threading
import warnings
from types import CodeType, FrameType
from typing import Any, Protocol

import torch
from torch import nn
from torch.compiler import is_compiling
from torch.nn.modules import module as torch_module

from layerscope.capture.core.call_graph import ModuleCall

#: A fixed, negative hook number: with a new number each time, torch would recompile compiled code.
_NUMBER = -1
_GLOBAL_HOOKS: tuple[dict[int, Any], ...] = (
    torch_module._global_forward_pre_hooks,
    torch_module._global_forward_hooks,
    torch_module._global_forward_hooks_always_called,
)
_ANNOYANCE = r"Using `torch.compile\(module\)` when there are global hooks"  # our own hooks, which do not interfere

Frames = tuple[CodeType | int, ...]  # code, last instruction, code, last instruction …; innermost first


class OpModuleCall(ModuleCall):
    """One call of one module while its operations are traced."""

    __slots__ = (
        *("began", "elapsed_s", "entry", "first_node", "frames"),
        *("index", "inputs", "outputs", "training"),
    )

    parent: OpModuleCall | None

    def __init__(self, module: nn.Module | None, path: str, number: int, parent: OpModuleCall | None) -> None:
        super().__init__(None, path, number, parent)  # a trace does not keep its model alive
        self.index = 0  # index among the calls of the forward
        self.training = module is not None and module.training
        self.entry: FrameType | None = None  # frame that called the module's forward, while it runs
        self.frames: Frames = ()
        self.first_node = 0  # number of nodes when it began
        self.inputs: tuple[int, ...] = ()
        self.outputs: tuple[int, ...] = ()
        self.began = self.elapsed_s = 0.0


def frames_between(frame: FrameType | None, entry: FrameType | None) -> Frames:
    """The frames from here to the forward of the enclosing module."""
    frames: list[CodeType | int] = []
    while frame is not None and frame is not entry:
        frames.append(frame.f_code)
        frames.append(frame.f_lasti)
        frame = frame.f_back
    return tuple(frames)


class ModuleCallListener(Protocol):
    """Is notified of module calls."""

    def before_module(self, module: nn.Module, args: tuple[Any, ...], frame: FrameType) -> None:
        """A module is about to be called."""
        ...

    def after_module(self, module: nn.Module, result: object, frame: FrameType) -> None:
        """A module was called; the result is None if it raised."""
        ...


class _Switchboard:
    """Dispatches torch's global hooks to the listeners of all threads, then to those of the calling thread.

    After a call the listeners are notified in the opposite order, as for nested blocks. Those of one thread are not
    notified while a backward runs: checkpointing then recomputes a forward.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._hooks = (self._before, self._after)  # one object each, and one number: compiled code checks both
        self._local = threading.local()
        self._everywhere: tuple[ModuleCallListener, ...] = ()

    def connect(self, listener: ModuleCallListener, *, everywhere: bool = False) -> None:
        """Call the listener for every module called on this thread, or on any."""
        if not everywhere:
            self._local.listeners = (*self.listeners(), listener)
        with self._lock:
            if everywhere:
                self._everywhere = (*self._everywhere, listener)
            self._count += 1
            if self._count == 1:
                torch_module._global_forward_pre_hooks[_NUMBER], torch_module._global_forward_hooks[_NUMBER] = (
                    self._hooks
                )
                torch_module._global_forward_hooks_always_called[_NUMBER] = True
                warnings.filterwarnings("ignore", _ANNOYANCE)
                self._filter = warnings.filters[0]

    def disconnect(self, listener: ModuleCallListener) -> None:
        """Undo `connect`; the last one removes the hooks."""
        self._local.listeners = tuple(other for other in self.listeners() if other is not listener)
        with self._lock:
            self._everywhere = tuple(other for other in self._everywhere if other is not listener)
            self._count -= 1
            if self._count == 0:
                for hooks in _GLOBAL_HOOKS:
                    hooks.pop(_NUMBER, None)
                if self._filter in warnings.filters:
                    warnings.filters.remove(self._filter)  # type: ignore[attr-defined]  # it is a list

    def listeners(self) -> tuple[ModuleCallListener, ...]:
        """The listeners of this thread alone."""
        listeners: tuple[ModuleCallListener, ...] = getattr(self._local, "listeners", ())
        return listeners

    def _before(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if is_compiling():
            return
        frame, listeners = sys._getframe(1), self.listeners()  # as they are before one connects another
        for listener in self._everywhere if torch._C._get_tracing_state() is None else ():  # of torch.jit
            listener.before_module(module, args, frame)
        if listeners and torch._C._current_graph_task_id() == -1:  # else checkpointing computes a forward again
            for listener in listeners:
                listener.before_module(module, args, frame)

    def _after(self, module: nn.Module, args: object, result: object) -> None:
        if is_compiling():
            return
        frame, listeners = sys._getframe(1), self.listeners()
        if listeners and torch._C._current_graph_task_id() == -1:
            for listener in reversed(listeners):
                listener.after_module(module, result, frame)
        for listener in reversed(self._everywhere) if torch._C._get_tracing_state() is None else ():
            listener.after_module(module, result, frame)


switchboard = _Switchboard()
