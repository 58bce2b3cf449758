"""Inputs and outputs of modules inside `torch.compile`.

A compiled region runs the hooks that were there when it was compiled. So the modules of a model with compiled parts get
theirs for the whole recording, and the compiler takes them in as calls of an operator of ours. A flag that it guards
says whether the step is recorded: there are two versions of each region, and that of idle steps holds nothing of ours.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from types import MethodType

import torch
from torch import Tensor, nn
from torch._dynamo import config, trace_rules
from torch.utils.hooks import RemovableHandle

from layerscope.capture.core.forwards import Forwards
from layerscope.capture.torch.hooks import Hook
from layerscope.capture.torch.tensor_tree import tensors_in


class _HookOutside(Hook):
    """A hook around a compiled region: only the module's forward is compiled, and hooks of that module run as ever."""

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # torch's own
    def __call__(self, *args: object) -> None:
        """Pass the call on."""
        self._listen(*args)


class CompiledModules:
    """Hooks on every module of a model with compiled parts, from now until `close`."""

    def __init__(
        self,
        forwards: Forwards,
        modules: Mapping[nn.Module, str],
        beginnings: set[nn.Module],
        *,
        inputs: bool,
        notice: Callable[[nn.Module], None],
    ) -> None:
        self.recorded = False
        self.inputs = inputs
        self.has_reported = False  # whether a compiled region has reported anything
        self.beginnings = weakref.WeakSet(beginnings)
        self._forwards = forwards
        self._notice = notice
        self.modules = weakref.WeakSet(modules)  # that carry the hooks
        self._numbers: list[int] = []
        self._handles: list[RemovableHandle] = []
        for module in modules:
            number = next(_numbers)
            self._numbers.append(number)
            _reports[number] = (weakref.ref(module), self._read)
            hook = _HookOutside if module in beginnings and _is_outside(module) else Hook
            self._handles += [
                module.register_forward_pre_hook(hook(partial(self._before, number)), with_kwargs=True),
                module.register_forward_hook(hook(partial(self._after, number))),
            ]

    def close(self) -> None:
        """Take the hooks away; regions compiled with them say nothing any more."""
        self.recorded = False
        for number in self._numbers:
            _reports.pop(number, None)
        while self._handles:
            self._handles.pop().remove()

    def _before(self, number: int, module: nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        if not torch.compiler.is_compiling():
            self._notice(module)  # an evaluation may begin
        if not self.recorded:
            return
        if not torch.compiler.is_compiling():
            self._forwards.enter(module, args, kwargs)
        elif self.inputs:
            for port, tensor in (*tensors_in(args, "input"), *tensors_in(dict(kwargs), "input")):
                _tell(tensor.detach(), _NOTHING, number, port)

    def _after(self, number: int, module: nn.Module, args: tuple[object, ...], output: object) -> None:
        if not self.recorded:
            return
        if not torch.compiler.is_compiling():
            self._forwards.leave(module, output)
        else:
            for port, tensor in tensors_in(output, "output"):
                _tell(tensor.detach(), _NOTHING, number, port)

    def _read(self, module: nn.Module, port: str, tensor: Tensor) -> None:
        self.has_reported = True
        if self.recorded:
            self._forwards.read_compiled(module, port, tensor)


def _is_outside(module: nn.Module) -> bool:
    """Whether a compiled region that begins at the module begins with its forward, and not with its call.

    The compiler puts a frame of its own around modules of torch, whose forward it would pass over.
    """
    if module._compiled_call_impl is not None:
        return True
    return not (config.wrap_top_frame or (isinstance(module.forward, MethodType) and trace_rules.check(module.forward)))


_numbers = itertools.count()
_reports: dict[int, tuple[weakref.ref[nn.Module], Callable[[nn.Module, str, Tensor], None]]] = {}
_NOTHING = torch.zeros(1, dtype=torch.uint8)  # said to be written: an operator that writes nothing is left out


@torch.library.custom_op("layerscope::tell", mutates_args=("nothing",))
def _tell(tensor: Tensor, nothing: Tensor, number: int, port: str) -> None:
    ref, read = _reports.get(number, (None, None))
    module = None if ref is None else ref()
    if module is not None and read is not None:
        read(module, port, tensor)


@_tell.register_fake
def _(tensor: Tensor, nothing: Tensor, number: int, port: str) -> None:
    return None
