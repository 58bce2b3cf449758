"""Calls of modules while a pass runs. One pair of torch's global hooks serves every tracer of the process."""

from __future__ import annotations

import sys
import threading
from types import CodeType, FrameType
from typing import Any, Protocol

import torch
from torch import nn
from torch.compiler import is_compiling
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

Frames = tuple[CodeType | int, ...]  # code, last instruction, code, last instruction …; innermost first


class ModuleCall:
    """One call of one module while the pass runs."""

    __slots__ = (
        "began",
        "elapsed_s",
        "entry",
        "first_node",
        "frames",
        "index",
        "inputs",
        "number",
        "outputs",
        "parent",
        "path",
        "training",
    )

    def __init__(self, path: str, number: int, parent: ModuleCall | None, *, training: bool) -> None:
        self.path = path
        self.index = 0  # among the calls of the pass
        self.number = number  # 1 for the first call of this module in the pass
        self.parent = parent
        self.training = training
        self.entry: FrameType | None = None  # where the module's forward was called, while it runs
        self.frames: Frames = ()
        self.first_node = 0  # nodes there were when it began
        self.inputs: tuple[int, ...] = ()
        self.outputs: tuple[int, ...] = ()
        self.began = self.elapsed_s = 0.0


def frames_between(frame: FrameType | None, entry: FrameType | None) -> Frames:
    """The frames from here to the forward of the module around."""
    found: list[CodeType | int] = []
    while frame is not None and frame is not entry:
        found.append(frame.f_code)
        found.append(frame.f_lasti)
        frame = frame.f_back
    return tuple(found)


class Listener(Protocol):
    """Wants to know when modules are called on its thread."""

    def before_module(self, module: nn.Module, args: tuple[Any, ...], frame: FrameType) -> None:
        """A module is about to be called."""
        ...

    def after_module(self, module: nn.Module, result: object, frame: FrameType) -> None:
        """A module was called; the result is None when it raised."""
        ...


class _Switchboard:
    """Passes torch's global hooks on to the listeners of the calling thread.

    After a call the listeners hear of it in the opposite order, as blocks inside one another must end.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._handles: list[Any] = []
        self._local = threading.local()

    def connect(self, listener: Listener) -> None:
        """Let the listener hear of every module called on this thread."""
        self._local.listeners = (*self._listeners(), listener)
        with self._lock:
            self._count += 1
            if self._count == 1:
                self._handles = [
                    register_module_forward_pre_hook(self._before),
                    register_module_forward_hook(self._after, always_call=True),
                ]

    def disconnect(self, listener: Listener) -> None:
        """Undo `connect`; the last one takes the hooks away."""
        self._local.listeners = tuple(other for other in self._listeners() if other is not listener)
        with self._lock:
            self._count -= 1
            if self._count == 0:
                for handle in self._handles:
                    handle.remove()
                self._handles = []

    def _listeners(self) -> tuple[Listener, ...]:
        found: tuple[Listener, ...] = getattr(self._local, "listeners", ())
        return found

    def _before(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if is_compiling():
            return
        listeners = self._listeners()
        if listeners and torch._C._current_graph_task_id() == -1:  # else checkpointing computes a forward again
            frame = sys._getframe(1)
            for listener in listeners:
                listener.before_module(module, args, frame)

    def _after(self, module: nn.Module, args: object, result: object) -> None:
        if is_compiling():
            return
        listeners = self._listeners()
        if listeners and torch._C._current_graph_task_id() == -1:
            frame = sys._getframe(1)
            for listener in reversed(listeners):
                listener.after_module(module, result, frame)


switchboard = _Switchboard()
