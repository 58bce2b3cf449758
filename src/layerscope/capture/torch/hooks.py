"""Hooks that do not survive copy or pickle, and the guard that keeps our errors out of the training."""

from __future__ import annotations

import gc
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from typing import ParamSpec

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes as _no_dispatch_mode

from layerscope.errors import LayerscopeWarning

_COMPILER = "torch._dynamo.eval_frame"


_abandoned: deque[ExitStack] = deque()


def abandon(hooks: ExitStack) -> None:
    """Have hooks taken away later that hear nothing any more: torch may be going through its hooks right now."""
    _abandoned.append(hooks.pop_all())


def remove_abandoned() -> None:
    """Take abandoned hooks away: from the training's own thread, outside of any hook."""
    while _abandoned:
        _abandoned.popleft().close()


class Hook:
    """A hook on a module of the user's, which in a copy or a file of the model turns into one that does nothing."""

    def __init__(self, listen: Callable[..., None]) -> None:
        self._listen = listen

    def __call__(self, *args: object) -> None:
        """Pass the call on."""
        self._listen(*args)

    def __reduce__(self) -> tuple[object, ...]:
        return (getattr, (nullcontext(), "__exit__"))  # takes anything, does nothing, and is there without layerscope


def compiled_parts(model: nn.Module) -> set[nn.Module]:
    """The modules at which compiled regions begin: compiled, and not inside a compiled one; loads no compiler.

    A module does not know whether somebody holds it in a wrapper of `torch.compile`: those are looked for.
    """
    parts = set(model.modules())
    compiled = {module for module in parts if module._compiled_call_impl is not None}
    compiler = sys.modules.get(_COMPILER)
    if compiler is not None:
        wrapper = compiler.OptimizedModule
        compiled |= {found._orig_mod for found in gc.get_objects() if type(found) is wrapper} & parts
    mine = [module for module in model.modules() if module in compiled]
    inside = {part for module in mine for part in module.modules() if part is not module}
    return set(mine) - inside


def is_wrapper(module: nn.Module) -> bool:
    """Whether the module is what `torch.compile` puts around another one."""
    return type(module).__name__ == "OptimizedModule" and type(module).__module__ == _COMPILER


def is_recorded_by_others() -> bool:
    """Whether a compiler or `torch.jit.trace` records what is computed now, and must not find our operations in it."""
    return torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None


P = ParamSpec("P")
_BEFORE_US = 4.0  # about what a hook costs before it reaches us: torch leaves its quick path for it
_modes = torch._C._len_torch_dispatch_stack


class ListenerGuard:
    """Runs what a listener does. Its first failure is reported, and ends the listening."""

    def __init__(self, report: Callable[[str], None], stop: Callable[[], None]) -> None:
        self.failed = False
        self.spent_s = 0.0
        self.calls = 0  # of hooks, since the last time that was asked
        self._report = report
        self._stop = stop

    def run(self, listen: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call the function, unless an earlier one failed."""
        if self.failed:
            return
        began = time.perf_counter()
        self.calls += 1
        try:
            # Our look at a tensor is no operation of the user's: nobody's mode hears of it.
            with torch._C.DisableTorchFunction():
                if not _modes():
                    listen(*args, **kwargs)
                else:
                    with _no_dispatch_mode():
                        listen(*args, **kwargs)
        except Exception as error:  # noqa: BLE001  a bug of ours must not stop somebody's training
            self._fail(error)
        finally:
            self.spent_s += time.perf_counter() - began

    def taken_s(self) -> float:
        """Seconds spent since the last time this was asked."""
        spent, self.spent_s = self.spent_s + self.calls * _BEFORE_US * 1e-6, 0.0
        self.calls = 0
        return spent

    def _fail(self, error: Exception) -> None:
        self.failed = True
        self._stop()
        text = f"layerscope stopped listening after {type(error).__name__}: {error}. The training goes on unrecorded."
        self._report(text)
        warnings.warn(text, LayerscopeWarning, stacklevel=3)
