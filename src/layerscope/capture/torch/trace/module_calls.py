"""Calls of modules while a pass runs. One pair of torch's global hooks serves every tracer of the process."""

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

#: torch numbers hooks as they come, none negative. With a new number each time, compiled code is compiled again.
_NUMBER = -1
_GLOBAL_HOOKS: tuple[dict[int, Any], ...] = (
    torch_module._global_forward_pre_hooks,
    torch_module._global_forward_hooks,
    torch_module._global_forward_hooks_always_called,
)
_ANNOYANCE = r"Using `torch.compile\(module\)` when there are global hooks"  # ours, which do not mind

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


class ModuleCallListener(Protocol):
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
        self._hooks = (self._before, self._after)  # one object each, and one number: compiled code asks for both
        self._local = threading.local()

    def connect(self, listener: ModuleCallListener) -> None:
        """Let the listener hear of every module called on this thread."""
        self._local.listeners = (*self.listeners(), listener)
        with self._lock:
            self._count += 1
            if self._count == 1:
                torch_module._global_forward_pre_hooks[_NUMBER], torch_module._global_forward_hooks[_NUMBER] = (
                    self._hooks
                )
                torch_module._global_forward_hooks_always_called[_NUMBER] = True
                warnings.filterwarnings("ignore", _ANNOYANCE)
                self._filter = warnings.filters[0]

    def disconnect(self, listener: ModuleCallListener) -> None:
        """Undo `connect`; the last one takes the hooks away."""
        self._local.listeners = tuple(other for other in self.listeners() if other is not listener)
        with self._lock:
            self._count -= 1
            if self._count == 0:
                for hooks in _GLOBAL_HOOKS:
                    hooks.pop(_NUMBER, None)
                if self._filter in warnings.filters:
                    warnings.filters.remove(self._filter)  # type: ignore[attr-defined]  # it is a list

    def listeners(self) -> tuple[ModuleCallListener, ...]:
        """Who wants to hear of the modules of this thread."""
        found: tuple[ModuleCallListener, ...] = getattr(self._local, "listeners", ())
        return found

    def _before(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if is_compiling():
            return
        listeners = self.listeners()
        if listeners and torch._C._current_graph_task_id() == -1:  # else checkpointing computes a forward again
            frame = sys._getframe(1)
            for listener in listeners:
                listener.before_module(module, args, frame)

    def _after(self, module: nn.Module, args: object, result: object) -> None:
        if is_compiling():
            return
        listeners = self.listeners()
        if listeners and torch._C._current_graph_task_id() == -1:
            frame = sys._getframe(1)
            for listener in reversed(listeners):
                listener.after_module(module, result, frame)


switchboard = _Switchboard()
