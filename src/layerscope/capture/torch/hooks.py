"""Hooks that stay behind in nothing, and what hooks cannot see."""

from __future__ import annotations

import gc
import sys
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, nullcontext

import torch
from torch import nn

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
