"""Traces torch calls: the calls, their modules, inputs and outputs."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from layerscope.capture.torch.tensor_tree import tensors_of
from layerscope.capture.torch.trace.functions import Function, may_take_fused_path
from layerscope.capture.torch.trace.module_calls import (
    OpModuleCall,
    announcer,
    frames_between,
    is_compiled,
    remove_mode,
    switchboard,
    without_mode,
)
from layerscope.capture.torch.trace.op_graph import Keep, OpGraph, Row
from layerscope.capture.torch.trace.op_recorder import OpRecorder, unwatched


class Tracer:
    """Records every torch call of this thread inside a `with` block; `model` names modules and parameters.

    `keep`: whether values are kept, for all calls or by a function of each; `gradients`: whether gradients of later
    backwards are recorded; `open_composites`: show Python functions such as `einsum` as the calls they make.
    """

    def __init__(
        self, model: nn.Module | None, *, keep: Keep, gradients: bool = True, open_composites: bool = False
    ) -> None:
        self._options = {"keep": keep, "gradients": gradients, "open_composites": open_composites}
        outside = OpModuleCall(None, "", 0, None)
        self.graph = OpGraph(outside, keep=keep, gradients=gradients)
        self.ops = OpRecorder(self.graph, open_composites=open_composites)
        self.calls = self.graph.nodes.calls
        self.classes: dict[str, str] = {}
        self.elapsed_s = 0.0
        self.model = model
        self.random_state = torch.get_rng_state()
        self._paths: dict[nn.Module, str] = {}
        self._opaque: OpaqueCall | None = None
        self._late: dict[nn.Module, RemovableHandle] = {}
        self._announced: list[nn.Module] = []
        self._began = 0.0
        if model is not None:
            self._learn(model, "")

    def twin(self, model: nn.Module | None = None, **options: object) -> Tracer:
        """Another tracer of the same model, or of a copy, with changed options."""
        return Tracer(model or self.model, **(self._options | options))  # type: ignore[arg-type]  # each has its own type

    def __enter__(self) -> Tracer:
        self.calls[0].entry = _below_user(sys._getframe(1))
        self.random_state = torch.get_rng_state()
        self._began = time.perf_counter()
        switchboard.connect(self)
        self._announced = announcer.connect(self._paths)
        self.ops.__enter__()  # type: ignore[no-untyped-call]  # torch's own
        return self

    def __exit__(self, *exception: object) -> None:
        if self._opaque is not None:  # left by an interrupt, which module hooks do not see
            self._opaque.end()
            self._opaque = None
        remove_mode(self.ops)
        announcer.disconnect(self._announced)
        switchboard.disconnect(self)
        self.elapsed_s = time.perf_counter() - self._began
        for call in self.calls:
            call.entry = None
        self.graph.stack.current = self.calls[0]
        self.graph.gradients.let_go()
        while self._late:
            self._late.popitem()[1].remove()

    def add_inputs(self, values: object) -> None:
        """Add input nodes for the tensors passed to the forward."""
        with unwatched():
            for tensor in tensors_of(values):
                if not self.graph.knows(tensor) and not self.graph.externals.has(tensor):
                    self.graph.add_input(tensor)

    def add_outputs(self, values: object) -> None:
        """Add output nodes for the tensors that the forward returns."""
        with unwatched():
            for tensor in tensors_of(values):
                self.graph.add_output(tensor)

    def call(self, target: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # Any: its result
        """Call the target; a model's inputs and outputs are noted when the model itself is called."""
        if isinstance(target, nn.Module):
            return target(*args, **kwargs)
        self.add_inputs((args, kwargs))
        if hasattr(target, "_torchdynamo_orig_callable"):  # compiled: runs without the mode and is one operation
            with unwatched():
                arguments = self.ops.arguments_of(args, kwargs)
            with without_mode(self.ops):
                result = target(*args, **kwargs)
            with unwatched():
                self.ops.add_opaque(target, str(getattr(target, "__name__", "compiled")), arguments, result)
        else:
            result = target(*args, **kwargs)
        self.add_outputs(result)
        return result

    def failing_call(self, error: BaseException) -> str | None:
        """The function that raised the error, and the module around it; None if no recorded call did."""
        identity, call = self.ops.failing or (None, None)
        return call if identity == id(error) else None

    def before_module(self, module: nn.Module, args: tuple[Any, ...], frame: FrameType) -> None:
        """Begin the call of a module."""
        if self._opaque is not None or not self.ops.is_looking():
            return
        path = self._path(module)
        around = self.graph.module
        call = OpModuleCall(module, path, self.graph.stack.count(path), around)
        call.frames = frames_between(frame.f_back, around.entry)
        call.entry = frame
        kwargs = frame.f_locals.get("kwargs", {})
        if module is self.model:
            self.add_inputs((args, kwargs))
        with unwatched():
            call.inputs = self._nodes_of((args, kwargs))
        call.first_node = len(self.graph.nodes)
        self.graph.stack.enter(call)
        call.index = len(self.calls)
        self.calls.append(call)
        if (
            module._forward_hooks and module not in self._late and module._compiled_call_impl is None
        ):  # the module's own hooks may replace the result, and run after the global ones
            self._late[module] = module.register_forward_hook(self._late_end, always_call=True)
        call.began = time.perf_counter()
        if (compiled := is_compiled(module)) or may_take_fused_path(module, args, kwargs):
            with unwatched():
                arguments = self.ops.arguments_of(args, dict(kwargs))
            self._opaque = OpaqueCall(module, arguments, self.ops if compiled else None)

    def after_module(self, module: nn.Module, result: object, frame: FrameType) -> None:
        """End the call of a module, unless its own hooks still have to run."""
        opaque = self._opaque
        if opaque is None and not self.ops.is_looking():
            return
        if opaque is not None:
            if opaque.module is not module:
                return
            self._opaque = None
            opaque.end()
            with unwatched():
                self.ops.add_opaque(opaque.function, type(module).__name__, opaque.arguments, result)
        if module not in self._late:
            self._end(module, result, frame)

    def _late_end(self, module: nn.Module, args: object, result: object) -> None:
        if self.ops.is_looking():
            self._end(module, result, sys._getframe(1))

    def _end(self, module: nn.Module, result: object, frame: FrameType) -> None:
        call = self.graph.module
        call.elapsed_s = time.perf_counter() - call.began
        with unwatched():
            if call.first_node == len(self.graph.nodes) and call.inputs:
                self._add_unseen(module, result, frame)
            outputs = tensors_of(result)
            self.graph.give_back(outputs)
            call.outputs = self._nodes_of(outputs)
        call.entry = None
        if call.parent is not None:
            self.graph.stack.leave()
        if module is self.model and result is not None:
            self.add_outputs(result)

    def _add_unseen(self, module: nn.Module, result: object, frame: FrameType) -> None:
        """Add one node for a module without visible torch calls: scripted or compiled."""
        if not all(map(self.graph.can_place, tensors_of(result))):
            arguments = self.ops.arguments_of(frame.f_locals.get("args", ()), dict(frame.f_locals.get("kwargs", {})))
            self.ops.add_opaque(module.forward, type(module).__name__, arguments, result)

    def _nodes_of(self, values: object) -> tuple[int, ...]:
        node_of = self.graph.memory.node_of
        nodes = [node_of(tensor) for tensor in tensors_of(values)]
        return tuple([node for node in nodes if node is not None])

    def _learn(self, model: nn.Module, prefix: str) -> None:
        for path, module in model.named_modules(prefix=prefix):
            if module not in self._paths:
                self._paths[module] = path
                self.classes[path] = type(module).__name__
        named = (*model.named_parameters(prefix), *model.named_buffers(prefix))
        self.graph.externals.add(named, len(self.graph.nodes))

    def _path(self, module: nn.Module) -> str:
        """Path of the module; a module outside the model is named after its class."""
        path = self._paths.get(module)
        if path is None:
            name = type(module).__name__.lower()
            used = sum(other == name or other.startswith(f"{name}-") for other in self.classes)
            path = f"{name}-{used + 1}" if used else name
            self._learn(module, path)
        return path


class OpaqueCall:
    """A module call that runs untraced."""

    def __init__(self, module: nn.Module, arguments: Row, compiled_under: OpRecorder | None) -> None:
        self.module = module
        self.arguments = arguments
        hooked = bool(module._forward_pre_hooks)  # they may change the arguments unobserved
        self.function: Function | None = module._compiled_call_impl or (None if hooked else module.forward)
        self._block = ExitStack()
        self._block.enter_context(unwatched() if compiled_under is None else without_mode(compiled_under))
        self.end = self._block.close


def _below_user(frame: FrameType | None) -> FrameType | None:
    """The frame below the user's code that started the recording."""
    while frame is not None and frame.f_globals.get("__name__", "").startswith(("layerscope.", "contextlib")):
        frame = frame.f_back
    return None if frame is None else frame.f_back
