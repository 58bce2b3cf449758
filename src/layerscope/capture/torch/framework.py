"""PyTorch's tensors, autograd and operations, as `capture/core` asks for them."""

# ruff: noqa: D102  the methods are documented in `Framework`

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from operator import attrgetter, methodcaller
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node, _engine_run_backward, get_gradient_edge
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.parameter import Parameter, is_lazy
from torch.utils._python_dispatch import _disable_current_modes as _no_dispatch_mode
from torch.utils.hooks import RemovableHandle

from layerscope.capture.core.framework import Array, Framework, GradientEdge, NoValues
from layerscope.capture.torch.tensor_tree import BEFORE_REDUCTION, local_part, shape_of
from layerscope.capture.torch.trace.memory import is_plain, storage_of
from layerscope.capture.torch.tracing import StepTracer, trace_forward
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
