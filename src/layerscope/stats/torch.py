"""Summaries of torch tensors, read where they lie whenever they can be.

Nothing is changed: no autograd graph, no random state, no attribute. Plain tensors and parameters only: a subclass that
wraps other tensors, such as a DTensor, has no memory of its own; give the tensor inside it (`.to_local()`).
"""

from __future__ import annotations

import torch

from layerscope.errors import SelectError
from layerscope.stats import kernel

#: Types that are read as another one, which holds all their values (but for uint64 beyond 2**53).
_READ_AS = {
    "uint16": "int32",
    "uint32": "int64",
    "uint64": "float64",
    "float8_e4m3fn": "float32",
    "float8_e4m3fnuz": "float32",
    "float8_e5m2": "float32",
    "float8_e5m2fnuz": "float32",
    "float8_e8m0fnu": "float32",
}
#: Complex numbers are summarised by their magnitude.
_MAGNITUDES = {torch.complex32: torch.complex64, torch.complex64: torch.complex64, torch.complex128: torch.complex128}

_IN_PLACE = {getattr(torch, name): kernel.format_number(name) for name in kernel.STORED}
_UPCAST = {
    getattr(torch, name): (getattr(torch, wider), kernel.format_number(wider, name))
    for name, wider in _READ_AS.items()
    if hasattr(torch, name)  # older versions lack some
}


def dtype_name(tensor: torch.Tensor) -> str:
    """The tensor's type without its module: `float32`."""
    return str(tensor.dtype).removeprefix("torch.")


def add(arena: kernel.Arena, tensor: torch.Tensor) -> int:
    """Row of the tensor's summary in the arena.

    A summary does not depend on the order of the elements, so transposed and channels-last tensors are
    read in place, too. Strided views with gaps, broadcast tensors and tensors on other devices are copied.
    """
    number = _IN_PLACE.get(tensor.dtype)
    if (
        number is None
        or not tensor.is_cpu
        or tensor.layout is not torch.strided
        or tensor.is_nested
        or not tensor.is_contiguous()
        or tensor.is_neg()
    ):
        tensor, number = _readable(tensor)
    return arena.add(_address(tensor), tensor.numel(), number)


def _address(tensor: torch.Tensor) -> int:
    try:
        address = tensor.data_ptr()
    except RuntimeError as error:  # how a tensor without memory answers
        raise _no_memory(tensor) from error
    if address == 0 and tensor.numel():
        raise _no_memory(tensor)
    return address


def _no_memory(tensor: torch.Tensor) -> SelectError:
    return SelectError(
        f"A {type(tensor).__name__} on {tensor.device} has no memory to read a summary from. "
        "Give the plain tensor it stands for, or leave it out."
    )


def _readable(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    """A tensor of the same values in one piece of the processor's memory, and the number of its format."""
    _refuse(tensor)
    with torch.no_grad():
        if tensor.dtype in _MAGNITUDES:
            tensor = tensor.to(_MAGNITUDES[tensor.dtype]).abs()
        tensor = tensor.cpu().resolve_neg()
        if tensor.dtype in _UPCAST:
            wider, number = _UPCAST[tensor.dtype]
            tensor = tensor.to(wider)
        else:
            number = _IN_PLACE[tensor.dtype]
        return (tensor if _is_dense(tensor) else tensor.contiguous()), number


def _refuse(tensor: torch.Tensor) -> None:
    """Raise if there is nothing that could be read."""
    if tensor.is_nested:
        raise SelectError("A nested tensor has no summary. Record its parts (`.unbind()`) instead.")
    if tensor.layout is not torch.strided:
        raise SelectError(
            f"A tensor of layout {tensor.layout} has no summary. Record its `.to_dense()`, or its `.values()`."
        )
    if tensor.is_meta:
        raise _no_memory(tensor)
    if not (tensor.dtype in _IN_PLACE or tensor.dtype in _UPCAST or tensor.dtype in _MAGNITUDES):
        raise SelectError(
            f"A tensor of type {dtype_name(tensor)} has no summary. Convert it first, for example "
            "with `.dequantize()` or `.to(torch.float32)`."
        )


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill one piece of memory without gaps or overlaps, in whatever order."""
    filled = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != filled:
                return tensor.numel() == 0
            filled *= size
    return True
