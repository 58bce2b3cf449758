"""Executes a recorded call again under the original conditions, with the same or other values."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import _pop_mode, _push_mode
from torch.utils._python_dispatch import _disable_current_modes

from layerscope.capture.torch.trace.arguments import put_together
from layerscope.capture.torch.trace.bit_equality import has_values
from layerscope.capture.torch.trace.functions import writes
from layerscope.capture.torch.trace.memory import copy_of, is_plain
from layerscope.capture.torch.trace.op_graph import OpGraph, OpNode
from layerscope.capture.torch.trace.op_recorder import results_of


class ValueNotKept(Exception):
    """A value that a call needs was not kept."""


def execute(graph: OpGraph, node: OpNode, value_of: Callable[[int], Tensor]) -> list[Tensor]:
    """The results of a node's call, computed from `value_of(parent)` of its parents."""
    assert node.function is not None
    fetch = _fetcher(graph, node, value_of)
    args, kwargs = put_together(node.args, node.kwargs, fetch)
    loud, quiet = writes(node.facts, args, kwargs)
    if loud or quiet:
        copies = {
            id(tensor): copy_of(tensor).detach() for tensor in (*loud, *quiet)
        }  # autograd does not allow writing a leaf
        args, kwargs = put_together(node.args, node.kwargs, lambda at: copies.get(id(fetch(at)), fetch(at)))
        loud = [copies[id(tensor)] for tensor in loud]
    with circumstances(node, kwargs):
        return results_of(node.function(*args, **kwargs), loud)


@contextmanager
def undisturbed() -> Iterator[None]:
    """A `with` block hidden from other recorders, with the user's random state restored."""
    modes = [_pop_mode() for _ in range(torch._C._len_torch_function_stack())]
    state = torch.get_rng_state()
    try:
        with warnings.catch_warnings(), _disable_current_modes():
            warnings.simplefilter("ignore")  # they were issued the first time
            yield
    finally:
        torch.set_rng_state(state)
        for mode in reversed(modes):
            _push_mode(mode)


def pairs_of(pairs: tuple[int | str, ...]) -> dict[str, int]:
    """Argument → number, from the flat form."""
    return {str(at): int(number) for at, number in zip(pairs[::2], pairs[1::2], strict=True)}


def _fetcher(graph: OpGraph, node: OpNode, value_of: Callable[[int], Tensor]) -> Callable[[str], Tensor]:
    parents, externals = pairs_of(node.parents), pairs_of(node.externals)

    def fetch(at: str) -> Tensor:
        if at in parents:
            return value_of(parents[at])
        external = graph.externals.all[externals[at]]
        if external.value is None:
            raise ValueNotKept(f"{external.name} was written later, and values are not kept")
        if external.is_changed:
            raise ValueNotKept(f"{external.name} has changed since")
        return external.value

    return fetch


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
