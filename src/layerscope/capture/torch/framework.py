"""PyTorch's tensors, autograd and operations, as `capture/core` asks for them."""

# ruff: noqa: D102  the methods are documented in `Framework`

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from operator import attrgetter, methodcaller
from types import FrameType
from typing import Any, ParamSpec

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node, _engine_run_backward, get_gradient_edge
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.parameter import Parameter, is_lazy
from torch.utils._python_dispatch import _disable_current_modes as _no_dispatch_mode
from torch.utils.hooks import RemovableHandle

from layerscope.capture.core.framework import Array, Framework, GradientEdge, NoValues
from layerscope.capture.torch.tensor_tree import BEFORE_REDUCTION, local_part, shape_of
from layerscope.capture.torch.trace.functions import may_take_fused_path
from layerscope.capture.torch.trace.memory import is_plain, storage_of
from layerscope.capture.torch.trace.module_calls import move_to_bottom, remove_mode
from layerscope.capture.torch.trace.op_graph import EXTERNALS, PARENTS
from layerscope.capture.torch.trace.op_recorder import OpRecorder
from layerscope.capture.torch.trace.tracer import Tracer
from layerscope.errors import SelectError
from layerscope.stats.kernel import Arena
from layerscope.stats.torch import (
    add,
    add_many,
    dtype_name,
    in_place,
    is_oversized,
    is_wrapper,
    largest_singular_value,
    thinned,
    threads_for,
)

P = ParamSpec("P")
_MOST_OPERATIONS = 300_000  # in a step: a training loop may do much between two


class ForgivingTracer(Tracer):
    """A tracer whose errors do not reach the training: it gives up instead. See `core.framework.Operations`."""

    def __init__(self, model: nn.Module | None) -> None:
        super().__init__(model, keep=False, gradients=False)
        self.ops.forgiving = True

    @property
    def trouble(self) -> Exception | None:
        """Why the operations are not known, if they are not."""
        return self.ops.trouble

    def __len__(self) -> int:
        return len(self.graph.nodes)

    def node_of(self, tensor: Tensor) -> int | None:
        """The node of a tensor; None if no traced operation made it."""
        return self.graph.memory.node_of(tensor)

    def add(self, tensor: Tensor) -> int:
        """The node of a tensor; one that came from outside becomes a node now."""
        return self.graph.node_of(tensor)

    def parents(self, node: int) -> tuple[int, ...]:
        """The nodes that an operation made this one of."""
        numbers: tuple[int, ...] = self.graph.nodes.rows[node][PARENTS][1::2]
        return numbers

    def parameters(self, node: int) -> Iterator[Tensor]:
        """Parameters and buffers that it used beside."""
        return (self.graph.externals.all[number].tensor for number in self.graph.nodes.rows[node][EXTERNALS][1::2])

    def leave(self) -> None:
        """Trace no more."""
        self.__exit__()

    def before_module(self, module: nn.Module, args: tuple[Any, ...], frame: FrameType) -> None:
        """Begin the call of a module."""
        self._attempt(super().before_module, module, args, frame)

    def after_module(self, module: nn.Module, result: object, frame: FrameType) -> None:
        """End the call of a module."""
        self._attempt(super().after_module, module, result, frame)

    def _attempt(self, listen: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call the function, unless something went wrong before; if something goes wrong now, remember it."""
        if self.ops.trouble is None:
            try:
                listen(*args, **kwargs)
            except Exception as error:  # noqa: BLE001  a bug of ours must not stop a training
                self.ops.trouble = error


def trace_forward(
    module: nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object], frame: FrameType
) -> ForgivingTracer | None:
    """A tracer of a module that is about to be called; None where a mode would keep it from its fused path."""
    if may_take_fused_path(module, args, kwargs):
        return None
    tracer = ForgivingTracer(module)
    tracer.__enter__()
    tracer.before_module(module, args, frame)  # its hooks come too late for this one
    return tracer


class StepTracer(ForgivingTracer):
    """Traces a step on the thread it begins on, below whatever function modes others have entered or will enter."""

    def __init__(self, model: nn.Module | None) -> None:
        super().__init__(model)
        self.ops.most = _MOST_OPERATIONS
        self._thread = threading.get_ident()
        for mode in tuple(_left_behind):  # at most a few, of steps that ended on another thread: one may lie on this
            remove_mode(mode)
        self.__enter__()
        move_to_bottom(self.ops)
        _entered.add(self)

    def leave(self) -> None:
        """Trace no more; what cannot be removed from the stack of another thread does nothing there."""
        if threading.get_ident() != self._thread:
            self.give_up("the step ended on another thread")
            _left_behind.add(self.ops)
        _entered.discard(self)
        super().leave()

    def give_up(self, reason: str) -> None:
        """Look at nothing more; the stack of function modes is left as it is."""
        if self.trouble is None:
            self.ops.trouble = RuntimeError(reason)


def _forked() -> None:
    """In a process that was forked in the middle of a step nothing ends the step: its tracer would remember all."""
    for tracer in tuple(_entered):
        tracer.give_up("the process was forked")


_entered: weakref.WeakSet[StepTracer] = weakref.WeakSet()
_left_behind: weakref.WeakSet[OpRecorder] = weakref.WeakSet()
if hasattr(os, "register_at_fork"):  # not where processes cannot be forked
    os.register_at_fork(after_in_child=_forked)


#: Types that numpy has none for.
_AS_FLOAT32 = frozenset(
    dtype
    for name in dir(torch)
    if name.startswith(("bfloat16", "float8", "float4")) and (dtype := getattr(torch, name))
)
_HALF = (torch.float16, torch.bfloat16)
#: The frames of a backward, and of a function in it that Python computes: checkpointing begins a backward there.
_RUNNING, _OWN_FUNCTION = _engine_run_backward.__code__, BackwardCFunction.apply.__code__
_modes = torch._C._len_torch_dispatch_stack
_NO_VALUES = "Tensors inside transforms of torch.func have no values, and are left out."


class TorchFramework(Framework):
    """See `Framework`."""

    tensor_type = Tensor
    shape = staticmethod(shape_of)
    dtype = staticmethod(dtype_name)
    in_place = staticmethod(in_place)
    threads = staticmethod(threads_for)
    local_part = staticmethod(local_part)
    is_oversized = staticmethod(is_oversized)
    largest_singular_value = staticmethod(largest_singular_value)
    backward = staticmethod(torch._C._current_graph_task_id)
    next_node = staticmethod(torch._C._autograd._get_sequence_nr)
    is_grad_enabled = staticmethod(torch.is_grad_enabled)
    requires_grad = staticmethod(attrgetter("requires_grad"))  # type: ignore[assignment]  # as quick as C
    node_number = staticmethod(methodcaller("_sequence_nr"))  # type: ignore[assignment]  # as quick as C
    next_edges = staticmethod(attrgetter("next_functions"))  # type: ignore[assignment]  # as quick as C
    trace_forward = staticmethod(trace_forward)
    trace_step = staticmethod(StepTracer)

    def version(self, tensor: Tensor) -> int | None:
        try:
            return tensor._version
        except RuntimeError:  # made in inference mode
            return None

    def array(self, tensor: Tensor) -> Array:
        plain = tensor.detach()
        try:
            return plain.numpy()
        except (TypeError, RuntimeError):  # a type that numpy lacks, another device, or a sign still to change
            with torch.no_grad():
                if plain.dtype in _AS_FLOAT32 or plain.dtype is torch.complex32:
                    plain = plain.to(torch.complex64 if plain.is_complex() else torch.float32)
                return plain.resolve_conj().resolve_neg().cpu().numpy()

    def summarize(self, arena: Arena, tensor: Tensor, most: int | None) -> int:
        try:
            return add(arena, tensor if most is None else thinned(tensor, most))
        except SelectError as error:
            raise _explained(tensor, error) from None

    def summarize_all(self, arena: Arena, tensors: Sequence[Tensor]) -> tuple[list[int], dict[int, SelectError]]:
        rows, errors = add_many(arena, tensors)
        return rows, {at: _explained(tensors[at], error) for at, error in errors.items()}

    def sum(self, one: Tensor, other: Tensor) -> Tensor | None:
        if is_wrapper(one) or is_wrapper(other):  # to add up DTensors may mean to wait for other processes
            return None
        with torch.no_grad():
            return one + other

    def norms(self, gradient: Tensor) -> Tensor | None:
        if gradient.layout is not torch.strided or gradient.is_nested:
            return None
        if is_wrapper(gradient):
            return gradient  # which is refused
        with torch.no_grad():
            flat = gradient.flatten(1) if gradient.dim() > 1 else gradient.reshape(-1, 1)
            norms: Tensor = torch.linalg.vector_norm(
                flat, dim=1, dtype=torch.float32 if gradient.dtype in _HALF else None
            )
            return norms

    def statistics(self, function: Callable[[Tensor], Mapping[str, Any]], tensor: Tensor) -> Mapping[str, Any]:
        with torch.no_grad():
            return function(tensor.detach())

    def is_leaf(self, tensor: Tensor) -> bool:
        return tensor.grad_fn is None

    def is_parameter(self, tensor: Tensor) -> bool:
        return isinstance(tensor, Parameter) and tensor.is_leaf and not is_wrapper(tensor)

    def outermost_backward(self) -> int | None:
        is_inside, frame = False, sys._getframe()
        while (above := frame.f_back) is not None:
            if frame.f_code in (_RUNNING, _OWN_FUNCTION):
                if is_inside:
                    return None
                is_inside = frame.f_code is _RUNNING
            frame = above
        return torch._C._current_graph_task_id()

    def running_node(self) -> int | None:
        node = torch._C._current_autograd_node()
        return None if node is None else node._sequence_nr()

    def edge(self, tensor: Tensor) -> GradientEdge:
        if tensor.grad_fn is not None:
            return GradientEdge(tensor.grad_fn, tensor.output_nr)
        return GradientEdge(*get_gradient_edge(tensor)[:2])

    def on_gradient(self, tensor: Tensor, listen: Callable[[Tensor], None]) -> RemovableHandle | None:
        node, number = tensor.grad_fn, tensor.output_nr
        if node is None:  # a leaf, whose node lives only as long as it is used
            handle: RemovableHandle = tensor.register_hook(listen)
            return handle

        def pick(gradients: Sequence[Tensor | None]) -> None:
            gradient = gradients[number]
            if gradient is not None:
                listen(gradient)

        node.register_prehook(pick)
        return None

    def on_node(self, node: Node, listen: Callable[[Sequence[Tensor | None]], None]) -> None:
        node.register_hook(lambda to_inputs, of_outputs: listen(to_inputs))

    def after_backward(self, call: Callable[[], None]) -> None:
        torch.autograd.Variable._execution_engine.queue_callback(call)

    def accumulator(self, parameter: Tensor) -> Node | None:
        if torch._C._functorch.peek_interpreter_stack() is not None:
            return None  # vmap and grad build graphs of their own, in which a parameter has no node
        if not (parameter.requires_grad and parameter.is_leaf) or is_lazy(parameter) or is_wrapper(parameter):
            return None
        with torch.inference_mode(mode=False):  # in which nothing has a node
            return get_gradient_edge(parameter).node

    def on_accumulation(self, node: Node, listen: Callable[[Tensor], None]) -> RemovableHandle:
        """A pre-hook on the node that accumulates, after the parameter's own hooks and before any reduction.

        `torch.autograd.grad`, which accumulates nothing, passes it by.
        """

        def pick(gradients: Sequence[Tensor | None]) -> None:
            if gradients[0] is not None:
                listen(gradients[0])

        return node.register_prehook(pick)

    def gradient_part(self) -> str:
        where = torch.distributed
        return BEFORE_REDUCTION if where.is_available() and where.is_initialized() else ""

    def kept(self, gradient: Tensor) -> Tensor:
        return gradient.detach().clone() if gradient.requires_grad else gradient

    def shield(self) -> AbstractContextManager[object]:
        return torch._C.DisableTorchFunction() if not _modes() else _without_modes()

    def is_recorded_by_others(self) -> bool:
        return is_recorded_by_others()

    def same_memory(self, tensor: Tensor) -> tuple[int, Callable[[], bool]] | None:
        if not is_plain(tensor):
            return None
        return storage_of(tensor), StorageWeakRef(tensor.untyped_storage()).expired


def is_recorded_by_others() -> bool:
    """Whether a compiler or `torch.jit.trace` records what is computed now, and must not find our operations in it."""
    return torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None


def _explained(tensor: Tensor, error: SelectError) -> SelectError:
    return NoValues(_NO_VALUES) if is_functorch_wrapped_tensor(tensor) else error


@contextmanager
def _without_modes() -> Iterator[None]:
    with torch._C.DisableTorchFunction(), _no_dispatch_mode():
        yield
