"""Modules compiled by `torch.compile`: they run untraced, as one operation.

Under a function mode, or after a new global hook, torch compiles the code again, and its inner operations use buffers
that no call returned. The mode is therefore removed while such a module runs.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.compiler import is_compiling
from torch.overrides import TorchFunctionMode, _pop_mode, _push_mode

from layerscope.capture.torch.trace.module_calls import switchboard


def is_compiled(module: nn.Module) -> bool:
    """Whether a call of the module runs compiled code, from `torch.compile(module)` or `module.compile()`."""
    return type(module).__name__ == "OptimizedModule" or module._compiled_call_impl is not None


class CompiledCalls:
    """A function mode removed from the stack until `end`."""

    def __init__(self, mode: TorchFunctionMode) -> None:
        self._mode = mode
        modes = _popped()
        self._at = modes.index(mode)
        modes.remove(mode)
        _pushed(modes)

    def end(self) -> None:
        """Put the mode back."""
        modes = _popped()
        modes.insert(self._at, self._mode)
        _pushed(modes)


def sink(mode: TorchFunctionMode) -> None:
    """Move an entered mode below all others, so that blocks entered before it may exit before it.

    The mode of `set_default_device` stays below: torch looks for it there. That of a `with torch.device(…)` block does
    not: at its end the block pops the topmost mode.
    """
    modes = _popped()
    modes.remove(mode)
    default = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    modes.insert(int(default is not None and modes[:1] == [default]), mode)
    _pushed(modes)


def leave(mode: TorchFunctionMode) -> None:
    """Remove a mode from this thread's stack, at any position, if it is there."""
    modes = _popped()
    _pushed(other for other in modes if other is not mode)


def _popped() -> list[TorchFunctionMode]:
    return [_pop_mode() for _ in range(torch._C._len_torch_function_stack())][::-1]


def _pushed(modes: Iterable[TorchFunctionMode]) -> None:
    for mode in modes:
        _push_mode(mode)


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
