"""Hooks on modules, which do not survive copy or pickle."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext

from torch import nn
from torch.utils.hooks import RemovableHandle

from layerscope.capture.core.contexts import Evaluations
from layerscope.capture.core.forwards import Call, Forwards, LateHooks
from layerscope.capture.torch.framework import is_recorded_by_others
from layerscope.capture.torch.trace.module_calls import switchboard

_COMPILER = "torch._dynamo.eval_frame"


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

    A module does not know whether a wrapper of `torch.compile` holds it: all objects are searched for those.
    """
    parts = set(model.modules())
    compiled = {module for module in parts if module._compiled_call_impl is not None}
    compiler = sys.modules.get(_COMPILER)
    if compiler is not None:
        wrapper = compiler.OptimizedModule
        compiled |= {each._orig_mod for each in gc.get_objects() if type(each) is wrapper} & parts
    mine = [module for module in model.modules() if module in compiled]
    inside = {part for module in mine for part in module.modules() if part is not module}
    return set(mine) - inside


def is_compile_wrapper(module: nn.Module) -> bool:
    """Whether the module is what `torch.compile` puts around another one."""
    return type(module).__name__ == "OptimizedModule" and type(module).__module__ == _COMPILER


class IdleHook(Hook):
    """The one hook that stays on a model in steps that are not recorded, to see when an evaluation begins."""

    def __init__(self, evaluations: Evaluations, listen: Callable[..., None]) -> None:
        super().__init__(listen)
        self._evaluations = evaluations

    def __call__(self, module: nn.Module, args: object) -> None:  # type: ignore[override]  # as torch calls it
        """Pass a call in evaluation mode on, if it is to be recorded; it takes about a microsecond if not."""
        if self._evaluations.awaits(module) and not is_recorded_by_others():
            self._listen(module, args)


class ModuleHooks(LateHooks):
    """torch's hooks of a recorded step, by which modules are read; and hooks of ours behind the user's own."""

    def __init__(self, forwards: Forwards) -> None:
        self._forwards = forwards
        self._lock = threading.Lock()
        self._behind: dict[nn.Module, tuple[RemovableHandle, int]] = {}  # and how many calls in progress wait for it
        self._changing = weakref.WeakSet[nn.Module]()  # whose own hooks may change what goes in
        forwards.late = self

    def put(self, hooks: ExitStack) -> None:
        """Put the hooks in place, until the stack is closed."""
        self._changing = weakref.WeakSet(
            module
            for module in self._forwards.read
            if any(type(hook) is not IdleHook for hook in module._forward_pre_hooks.values())
        )
        switchboard.connect(self._forwards, everywhere=True)
        hooks.callback(switchboard.disconnect, self._forwards)
        for module in self._changing:
            handle = module.register_forward_pre_hook(Hook(self._behind_pre_hooks), with_kwargs=True)
            hooks.callback(handle.remove)

    def start_over(self) -> None:
        """Forget the step."""
        while self._behind:
            self._behind.popitem()[1][0].remove()

    def change_inputs(self, module: nn.Module) -> bool:
        """Whether the module's hooks may change what goes in."""
        return module in self._changing

    def change_outputs(self, module: nn.Module) -> bool:
        """Whether the module's hooks may change what comes out."""
        return self._forwards.has_graph and bool(module._forward_hooks)

    def wait(self, call: Call) -> None:
        """Have a hook of ours run behind the module's own when this call ends."""
        with self._lock:
            handle, waiting = self._behind.get(call.module, (None, 0))
            handle = handle or call.module.register_forward_hook(Hook(self._behind_hooks))
            self._behind[call.module] = handle, waiting + 1

    def leave(self, call: Call) -> None:
        """Take that hook away, unless another call waits for it."""
        with self._lock:
            if call.module in self._behind:
                handle, waiting = self._behind.pop(call.module)
                if waiting > 1:
                    self._behind[call.module] = handle, waiting - 1
                else:
                    handle.remove()

    def _behind_pre_hooks(self, module: nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        if not is_recorded_by_others():
            self._forwards.read_inputs(module, args, kwargs)

    def _behind_hooks(self, module: nn.Module, args: object, output: object) -> None:
        if module in self._behind and not is_recorded_by_others():
            self._forwards.leave_late(module, output)
