"""Hooks that stay behind in nothing, and what hooks cannot see."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import nullcontext

from torch import nn

_COMPILER = "torch._dynamo"
_INSIDE = "_orig_mod"  # what a wrapper calls the module it was put around


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
    for holder in gc.get_referrers(*parts):  # far quicker than looking at every object
        if type(holder) is dict and holder.get(_INSIDE) in parts:
            compiled.add(holder[_INSIDE])
    mine = [module for module in model.modules() if module in compiled]
    inside = {part for module in mine for part in module.modules() if part is not module}
    return set(mine) - inside


def is_wrapper(module: nn.Module) -> bool:
    """Whether the module is what `torch.compile` puts around another one."""
    return type(module).__name__ == "OptimizedModule" and type(module).__module__.startswith(_COMPILER)
