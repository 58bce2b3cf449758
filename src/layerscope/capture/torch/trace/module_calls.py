"""Module calls during a forward. One pair of global hooks serves every tracer of the process.

A module compiled by `torch.compile` runs untraced, as one operation. Under a function mode, or after a new global hook,
torch compiles the code again, and its inner operations use buffers that no call returned. The mode is therefore removed
while such a module runs.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any, Protocol

import torch
from torch import nn
from torch.compiler import is_compiling
from torch.nn.modules import module as torch_module
from torch.overrides import TorchFunctionMode, _pop_mode, _push_mode

from layerscope.capture.core.call_graph import ModuleCall

#: A fixed, negative hook number: with a new number each time, torch would recompile compiled code.
_NUMBER = -1
_GLOBAL_HOOKS: tuple[dict[int, Any], ...] = (
    torch_module._global_forward_pre_hooks,
    torch_module._global_forward_hooks,
    torch_module._global_forward_hooks_always_called,
)
_HOOK_WARNING = r"Using `torch.compile\(module\)` when there are global hooks"  # our own hooks, which do not interfere

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
        self._hooks = (self._before, self._after, True)  # one object each, and one number: compiled code checks both
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
                for hooks, hook in zip(_GLOBAL_HOOKS, self._hooks, strict=True):
                    hooks[_NUMBER] = hook
                warnings.filterwarnings("ignore", _HOOK_WARNING)
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


def is_compiled(module: nn.Module) -> bool:
    """Whether a call of the module runs compiled code, from `torch.compile(module)` or `module.compile()`."""
    return type(module).__name__ == "OptimizedModule" or module._compiled_call_impl is not None


@contextmanager
def mode_stack() -> Iterator[list[TorchFunctionMode]]:
    """The function modes of the thread, lowest first: inactive in the block, then active again as the list has them."""
    modes = [_pop_mode() for _ in range(torch._C._len_torch_function_stack())][::-1]
    try:
        yield modes
    finally:
        for mode in modes:
            _push_mode(mode)


@contextmanager
def without_mode(mode: TorchFunctionMode) -> Iterator[None]:
    """Run a block without one of the function modes."""
    with mode_stack() as modes:
        index = modes.index(mode)
        modes.remove(mode)
    try:
        yield
    finally:
        with mode_stack() as modes:
            modes.insert(index, mode)


def move_to_bottom(mode: TorchFunctionMode) -> None:
    """Move an entered mode below all others, so that blocks entered before it may exit before it.

    The mode of `set_default_device` stays below: torch looks for it there. That of a `with torch.device(…)` block does
    not: at its end the block pops the topmost mode.
    """
    with mode_stack() as modes:
        modes.remove(mode)
        default = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
        modes.insert(int(default is not None and modes[:1] == [default]), mode)


def remove_mode(mode: TorchFunctionMode) -> None:
    """Remove a mode from this thread's stack, at any position, if it is there."""
    with mode_stack() as modes:
        modes[:] = [other for other in modes if other is not mode]


class _Announcer:
    """Notifies tracers of modules compiled in place, for which torch calls no global hook."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._originals: dict[nn.Module, tuple[Callable[..., Any], int]] = {}

    def connect(self, modules: Iterable[nn.Module]) -> list[nn.Module]:
        """Announce the calls of modules compiled in place; returns them, for `disconnect`."""
        with self._lock:
            compiled = [module for module in modules if module._compiled_call_impl is not None]
            for module in compiled:
                original, count = self._originals.get(module, (module._compiled_call_impl, 0))
                assert original is not None
                self._originals[module] = original, count + 1
                if count == 0:
                    module._compiled_call_impl = _announced(module, original)
            return compiled

    def disconnect(self, modules: Iterable[nn.Module]) -> None:
        """Undo `connect`."""
        with self._lock:
            for module in modules:
                original, count = self._originals.pop(module)
                if count > 1:
                    self._originals[module] = original, count - 1
                else:
                    module._compiled_call_impl = original


def _announced(module: nn.Module, original: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        listeners = () if is_compiling() else switchboard.listeners()
        frame, result = sys._getframe(), None
        for listener in listeners:
            listener.before_module(module, args, frame)
        try:
            result = original(*args, **kwargs)
        finally:
            for listener in reversed(listeners):
                listener.after_module(module, result, frame)
        return result

    return call


announcer = _Announcer()
