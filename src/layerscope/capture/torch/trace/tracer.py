"""Traces torch calls: the calls, their modules, inputs and outputs."""

from __future__ import annotations

import sys
import time
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from layerscope.capture.torch.tensor_tree import gather
from layerscope.capture.torch.trace.compiled_calls import CompiledCalls, announcer, is_compiled, leave
from layerscope.capture.torch.trace.functions import Function, may_take_fused_path
from layerscope.capture.torch.trace.module_calls import OpModuleCall, frames_between, switchboard
from layerscope.capture.torch.trace.op_graph import Keep, OpGraph
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
        self._closed: Closed | None = None
        self._late: dict[nn.Module, RemovableHandle] = {}
        self._announced: list[nn.Module] = []
        self._began = 0.0
        if model is not None:
            self._learn(model, "")

    def twin(self, model: nn.Module | None = None, **options: object) -> Tracer:
        """Another tracer of the same model, or of a copy, with changed options."""
        return Tracer(model or self.model, **(self._options | options))  # type: ignore[arg-type]  # each has its own type

    @property
    def gradients(self) -> dict[int, list[Tensor]]:
        """Node → its gradients, one per backward that reached it, including later backwards."""
        return self.graph.gradients

    def __enter__(self) -> Tracer:
        self.calls[0].entry = _below_user(sys._getframe(1))
        self.random_state = torch.get_rng_state()
        self._began = time.perf_counter()
        switchboard.connect(self)
        self._announced = announcer.connect(self._paths)
        self.ops.__enter__()  # type: ignore[no-untyped-call]  # torch's own
        return self

    def __exit__(self, *exception: object) -> None:
        if self._closed is not None:  # left by an interrupt, which module hooks do not see
            self._closed.reopen()
            self._closed = None
        leave(self.ops)
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
            for tensor in gather(values, []):
                if not self.graph.knows(tensor) and not self.graph.externals.has(tensor):
                    self.graph.add_input(tensor)

    def add_outputs(self, values: object) -> None:
        """Add output nodes for the tensors that the forward returns."""
        with unwatched():
            for tensor in gather(values, []):
                self.graph.add_output(tensor)

    def run_closed(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        """Run a compiled function untraced, as one operation; returns its result."""
        with unwatched():
            taken = self.ops.taken(args, kwargs)
        absence = CompiledCalls(self.ops)
        try:
            result = function(*args, **kwargs)
        finally:
            absence.end()
        with unwatched():
            self.ops.add_closed(function, str(getattr(function, "__name__", "compiled")), taken, result)
        return result

    def failing_call(self, error: BaseException) -> str | None:
        """The function that raised the error, and the module around it; None if no recorded call did."""
        failing = self.ops.failing
        if failing is None or failing.error != id(error):
            return None
        return f"{failing.function} in {failing.module}" if failing.module else failing.function

    def before_module(self, module: nn.Module, args: tuple[Any, ...], frame: FrameType) -> None:
        """Begin the call of a module."""
        if self._closed is not None or not self.ops.is_looking():
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
                taken = self.ops.taken(args, dict(kwargs))
            self._closed = Closed(module, taken, self.ops if compiled else None)

    def after_module(self, module: nn.Module, result: object, frame: FrameType) -> None:
        """End the call of a module, unless its own hooks still have to run."""
        closed = self._closed
        if closed is None and not self.ops.is_looking():
            return
        if closed is not None:
            if closed.module is not module:
                return
            self._closed = None
            closed.reopen()
            with unwatched():
                self.ops.add_closed(closed.function, type(module).__name__, closed.arguments, result)
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
            outputs = gather(result, [])
            self.graph.give_back(outputs)
            call.outputs = self._nodes_of(outputs)
        call.entry = None
        if call.parent is not None:
            self.graph.stack.leave()
        if module is self.model and result is not None:
            self.add_outputs(result)

    def _add_unseen(self, module: nn.Module, result: object, frame: FrameType) -> None:
        """Add one node for a module without visible torch calls: scripted or compiled."""
        if not all(map(self.graph.can_place, gather(result, []))):
            taken = self.ops.taken(frame.f_locals.get("args", ()), dict(frame.f_locals.get("kwargs", {})))
            self.ops.add_closed(module.forward, type(module).__name__, taken, result)

    def _nodes_of(self, values: object) -> tuple[int, ...]:
        node_of = self.graph.memory.node_of
        nodes = [node_of(tensor) for tensor in gather(values, [])]
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
            taken = sum(other == name or other.startswith(f"{name}-") for other in self.classes)
            path = f"{name}-{taken + 1}" if taken else name
            self._learn(module, path)
        return path


class Closed:
    """A module call that runs untraced."""

    def __init__(self, module: nn.Module, arguments: tuple[Any, ...], compiled_under: OpRecorder | None) -> None:
        self.module = module
        self.arguments = arguments
        hooked = bool(module._forward_pre_hooks)  # they may change the arguments unobserved
        self.function: Function | None = module._compiled_call_impl or (None if hooked else module.forward)
        self._absence = None if compiled_under is None else CompiledCalls(compiled_under)
        self._guard = torch._C.DisableTorchFunction()
        if compiled_under is None:
            self._guard.__enter__()

    def reopen(self) -> None:
        """Resume tracing."""
        if self._absence is None:
            self._guard.__exit__(None, None, None)
        else:
            self._absence.end()


def _below_user(frame: FrameType | None) -> FrameType | None:
    """The frame below the user's code that started the recording."""
    while frame is not None and frame.f_globals.get("__name__", "").startswith(("layerscope.", "contextlib")):
        frame = frame.f_back
    return None if frame is None else frame.f_back
