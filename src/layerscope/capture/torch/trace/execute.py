"""Executes a recorded call again under the original conditions, and compares tensors bit for bit."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from layerscope.capture.torch.trace.arguments import filled
from layerscope.capture.torch.trace.functions import writes
from layerscope.capture.torch.trace.memory import copy_of, is_plain
from layerscope.capture.torch.trace.module_calls import mode_stack
from layerscope.capture.torch.trace.op_graph import OpGraph, OpNode, pairs
from layerscope.capture.torch.trace.op_recorder import results_of


def has_values(tensor: Tensor) -> bool:
    """Whether the tensor has values: not on the meta device, nor in a fake tensor."""
    return not tensor.is_meta and type(tensor).__name__ not in ("FakeTensor", "FunctionalTensor")


def same(one: Tensor, other: Tensor) -> bool:
    """Whether class, shape and every bit agree."""
    with torch.no_grad(), torch._C.DisableTorchFunction():
        one, other = one.detach(), other.detach()
        if one.dtype != other.dtype or one.layout != other.layout or one.is_nested != other.is_nested:
            return False
        if one.is_nested:
            pieces, others = _pieces(one), _pieces(other)
            return len(pieces) == len(others) and all(map(same, pieces, others))
        if one.shape != other.shape:
            return False
        if not has_values(one):
            return True
        return all(map(_same_bits, _dense_parts(one), _dense_parts(other)))


def difference(one: Tensor, other: Tensor) -> float:
    """The largest difference, relative to the largest value; infinite if the two cannot be compared."""
    with torch.no_grad(), torch._C.DisableTorchFunction():
        comparable = one.shape == other.shape and one.layout == other.layout == torch.strided and not one.is_nested
        if not comparable or not (one.is_floating_point() or one.is_complex()):
            return float("inf")
        wide = torch.complex128 if one.is_complex() else torch.float64
        one, other = one.detach().to(wide), other.detach().to(wide)
        gap = torch.nan_to_num(one - other, nan=float("inf")).abs() if not torch.equal(one, other) else one.abs() * 0
        gap = torch.where((one == other) | (one.isnan() & other.isnan()), torch.zeros_like(gap), gap)
        return float(gap.max() / one.abs().nan_to_num().max().clamp_min(1e-30)) if gap.numel() else 0.0


def _pieces(nested: Tensor) -> tuple[Tensor, ...]:
    if nested.layout is torch.jagged:
        return nested.values(), nested.offsets()  # type: ignore[attr-defined]  # a method of that subclass
    return nested.unbind()


def _dense_parts(tensor: Tensor) -> list[Tensor]:
    """Strided tensors that together contain every value of a tensor."""
    if tensor.is_quantized:
        return [tensor.int_repr()]
    if tensor.layout is torch.strided:
        return [tensor.resolve_conj().resolve_neg()]
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return [tensor.to_dense()]


def _same_bits(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    if type(one) is not Tensor and type(one).__torch_dispatch__ is not Tensor.__torch_dispatch__:
        return bool(torch.equal(one, other))  # a wrapper has no memory of its own
    bits, others = (torch.view_as_real(t) if t.is_complex() else t for t in (one, other))
    return bool(torch.equal(_bytes(bits), _bytes(others)))


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).clone(memory_format=torch.contiguous_format).view(torch.uint8)


class ValueNotKept(Exception):
    """A value that a call needs was not kept."""


def execute(graph: OpGraph, node: OpNode, value_of: Callable[[int], Tensor]) -> list[Tensor]:
    """The results of a node's call, computed from `value_of(parent)` of its parents."""
    assert node.function is not None
    parents, externals = dict(pairs(node.parents)), dict(pairs(node.externals))

    def fetch(at: str) -> Tensor:
        if at in parents:
            return value_of(parents[at])
        external = graph.externals.all[externals[at]]
        if external.value is None:
            raise ValueNotKept(f"{external.name} was written later, and values are not kept")
        if external.is_changed:
            raise ValueNotKept(f"{external.name} has changed since")
        return external.value

    args, kwargs = filled(node.args, node.kwargs, fetch)
    written, side = writes(node.facts, args, kwargs)
    if written or side:
        # Detached: autograd does not allow writing a leaf.
        copies = {id(tensor): copy_of(tensor).detach() for tensor in (*written, *side)}
        args, kwargs = filled(node.args, node.kwargs, lambda at: copies.get(id(fetch(at)), fetch(at)))
        written = [copies[id(tensor)] for tensor in written]
    with circumstances(node, kwargs):
        return results_of(node.function(*args, **kwargs), written)


@contextmanager
def undisturbed() -> Iterator[None]:
    """A `with` block hidden from other recorders, with the user's random state restored."""
    state = torch.get_rng_state()
    try:
        with mode_stack(), warnings.catch_warnings(), _disable_current_modes():
            warnings.simplefilter("ignore")  # they were issued the first time
            yield
    finally:
        torch.set_rng_state(state)


@contextmanager
def circumstances(node: OpNode, kwargs: dict[str, Any]) -> Iterator[None]:
    """A `with` block with the recorded grad mode, autocast and random state."""
    with ExitStack() as stack:
        stack.enter_context(torch.set_grad_enabled(node.grad_mode))
        for part in node.autocast.split(",") if node.autocast else ():
            kind, dtype = part.split(":")
            stack.enter_context(torch.autocast(kind, getattr(torch, dtype), cache_enabled=False))
        if node.random_state is not None:
            generator = kwargs.get("generator") or torch.default_generator
            stack.callback(generator.set_state, generator.get_state())
            generator.set_state(node.random_state)
        yield


#: Calls that read out of bounds if lengths or offsets in a tensor are wrong.
TRUSTING = frozenset(("embedding_bag", "_pack_padded_sequence", "_pad_packed_sequence", "nested_tensor_from_jagged"))


def can_perturb(tensor: Tensor, function: str) -> bool:
    """Whether the tensor can be replaced by other values."""
    if not has_values(tensor) or tensor.numel() == 0 or type(tensor) not in (Tensor, torch.nn.Parameter):
        return False
    if tensor.layout is torch.sparse_coo:
        return True
    is_number = tensor.is_floating_point() or tensor.is_complex()
    return is_plain(tensor) and (is_number or function not in TRUSTING)


def perturbed(tensor: Tensor) -> Iterator[Tensor]:
    """Tensors like the given one with other values, each more different than the last."""
    others = _others(tensor)
    while True:
        # Not around the `yield`: a caller that stops early would have no gradients until the generator is collected.
        with torch.no_grad(), torch._C.DisableTorchFunction():
            other = next(others, None)
        if other is None:
            return
        yield other


def _others(tensor: Tensor) -> Iterator[Tensor]:
    if tensor.layout is torch.sparse_coo:
        indices, values = tensor._indices(), tensor._values()
        yield torch.sparse_coo_tensor(indices, values * 2 + 1, tensor.shape, is_coalesced=tensor.is_coalesced())
        return
    for values in _values(tensor.detach()):
        other = copy_of(tensor)
        target = other.detach()
        for dimension, stride in enumerate(target.stride()):
            if stride == 0:  # expanded: all are one
                target, values = target.narrow(dimension, 0, 1), values.narrow(dimension, 0, 1)
        target.copy_(values)
        yield other


def _values(tensor: Tensor) -> Iterator[Tensor]:
    if tensor.dtype is torch.bool:
        yield ~tensor
        yield torch.ones_like(tensor)
        yield torch.zeros_like(tensor)
    elif tensor.is_floating_point() or tensor.is_complex():
        noise = _noise(tensor)
        finite = torch.where(torch.isfinite(tensor), tensor, torch.zeros_like(tensor))
        scale = finite.abs().max().clamp_min(1e-3)
        yield finite + noise * scale
        yield noise * scale * 10
        yield noise.abs() * scale
        yield -finite - scale
    else:
        low, high = tensor.min(), tensor.max()
        yield tensor.flatten().flip(0).reshape(tensor.shape)
        yield low + high - tensor
        yield torch.full_like(tensor, int(low))
        yield torch.full_like(tensor, int(high))
        yield (tensor + 1).clamp_max(max(int(high), 1))


def _noise(tensor: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(tensor.numel())
    kind = torch.complex64 if tensor.is_complex() else torch.float32
    return torch.randn(tensor.shape, generator=generator, dtype=kind).to(tensor.device, tensor.dtype)
