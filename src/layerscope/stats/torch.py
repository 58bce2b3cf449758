"""Summaries of torch tensors, read inplace if possible.

Nothing changes: no autograd graph, no random state, no attribute. Only plain tensors and parameters: a subclass that
wraps other tensors, such as a DTensor, is refused. Pass the tensor inside it (`.to_local()`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from torch.nn.parameter import is_lazy

from layerscope.errors import SelectError
from layerscope.model.number_formats import BYTES, STORED
from layerscope.stats import kernel

#: Complex numbers are summarized by their magnitude.
_MAGNITUDES = {torch.complex32: torch.complex64, torch.complex64: torch.complex64, torch.complex128: torch.complex128}

_NUMBER = {getattr(torch, name): kernel.format_number(name) for name in STORED if hasattr(torch, name)}
_ONE_BYTE = {getattr(torch, name) for name in BYTES if hasattr(torch, name)}  # older versions lack some
_MOST_THREADS = 4
_MOST_REPEATED_BYTES = 1 << 28  # limit for copying a view that repeats elements
_SMALL_MATRIX = 256  # columns: beyond, computing all singular values takes longer than Lanczos
_LEAST_ROUNDS, _MOST_ROUNDS = 8, 200


def dtype_name(tensor: torch.Tensor) -> str:
    """The tensor's type without its module: `float32`."""
    return dtype_text(tensor.dtype)


def is_wrapper(tensor: torch.Tensor) -> bool:
    """Whether the tensor's class overrides dispatch: then its memory, if any, does not contain its values."""
    return type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__


@cache
def dtype_text(dtype: torch.dtype) -> str:
    """A type without its module."""
    return str(dtype).removeprefix("torch.")


def add(arena: kernel.Arena, tensor: torch.Tensor) -> int:
    """Summarize a tensor; returns its row in the arena.

    A summary does not depend on the order of the elements, so transposed and channels-last tensors are read inplace,
    too. In a broadcast tensor each distinct element is read once and counted as often as it occurs. Strided views with
    gaps and tensors on other devices are copied. Both elements of a float4 byte are counted.
    """
    entry = in_place(tensor)
    if entry is not None:
        return arena.add_many(entry, threads_for(entry[1]))
    _refuse(tensor)
    distinct, times = _distinct(tensor)
    readable, number = _readable(distinct)
    entry = [_address(readable), readable.numel(), number]
    row = arena.add_many(entry, threads_for(entry[1]))
    if times != 1:
        arena.repeat(row, times)
    return row


def add_many(arena: kernel.Arena, tensors: Sequence[torch.Tensor]) -> tuple[list[int], dict[int, SelectError]]:
    """Summarize several tensors, small ones in half the time of `add`; returns their rows.

    A tensor that cannot be read has row -1; the second result maps its position to the error. Rows need not ascend:
    tensors that have to be copied come first.
    """
    plan: list[int] = []
    apart: dict[int, int] = {}
    errors: dict[int, SelectError] = {}
    for position, tensor in enumerate(tensors):
        entry = in_place(tensor)
        if entry is not None:
            plan += entry
            continue
        try:
            apart[position] = add(arena, tensor)  # at once, so that only one copy is alive
        except SelectError as error:
            apart[position], errors[position] = -1, error
    first = arena.add_many(plan, threads_for(max(plan[1::3], default=0)))
    planned = range(first, first + len(plan) // 3)
    if not apart:
        return list(planned), errors
    following = iter(planned)
    return [apart[i] if i in apart else next(following) for i in range(len(tensors))], errors


def largest_singular_value(matrix: torch.Tensor) -> float:
    """Largest singular value of a real or complex matrix; NaN if an element is not finite."""
    with torch.no_grad():
        wide = matrix.detach().to(torch.complex128 if matrix.is_complex() else torch.float64).cpu()
        if wide.numel() == 0 or not bool(torch.isfinite(wide).all()):
            return 0.0 if wide.numel() == 0 else math.nan
        wide = wide if wide.shape[0] >= wide.shape[1] else wide.mH
        size = float(wide.abs().max()) or 1.0  # so that no square overflows
        wide = wide / size
        if wide.shape[1] <= _SMALL_MATRIX:
            return size * math.sqrt(max(float(torch.linalg.eigvalsh(wide.mH @ wide)[-1]), 0.0))
        return size * _by_lanczos(wide)


def _by_lanczos(matrix: torch.Tensor) -> float:
    """Largest singular value of a large matrix by Lanczos iteration from a fixed start, until it converges."""
    vectors = [torch.linspace(1.0, 2.0, matrix.shape[1], dtype=matrix.dtype)]
    vectors[0] /= torch.linalg.vector_norm(vectors[0])
    largest = 0.0
    diagonal: list[float] = []
    beside: list[float] = []
    for _ in range(_MOST_ROUNDS):
        image = matrix.mH @ (matrix @ vectors[-1])
        diagonal.append(float(torch.vdot(vectors[-1], image).real))
        basis = torch.stack(vectors, 1)
        image -= basis @ (basis.mH @ image)
        image -= basis @ (basis.mH @ image)  # twice: one pass leaves rounding errors that grow
        rest = float(torch.linalg.vector_norm(image))
        off = np.diag(beside, 1) if beside else 0.0
        before, largest = largest, float(np.linalg.eigvalsh(np.diag(diagonal) + off + np.transpose(off))[-1])
        if rest <= 1e-14 * max(diagonal) or (len(vectors) > _LEAST_ROUNDS and largest - before <= 1e-15 * largest):
            break
        beside.append(rest)
        vectors.append(image / rest)
    return math.sqrt(max(largest, 0.0))


def thinned(tensor: torch.Tensor, most: int) -> torch.Tensor:
    """At most `most` evenly spaced elements of the tensor; the tensor itself if it has no more.

    Draws no random numbers. The stride shares no factor with the tensor's size, so that it covers every dimension.
    """
    if is_wrapper(tensor):
        return tensor
    count = tensor.numel()
    if count <= most or tensor.layout is not torch.strided or tensor.is_nested or not _is_dense(tensor):
        return tensor
    distance = -(-count // most)
    while math.gcd(distance, count) != 1:
        distance += 1
    return tensor.detach().as_strided((count,), (1,), tensor.storage_offset())[::distance]


def threads_for(elements: int) -> int:
    """Number of threads for a tensor of `largest` elements: that of torch, up to a limit."""
    return 1 if elements < kernel.LARGE else min(torch.get_num_threads(), _MOST_THREADS)


def in_place(tensor: torch.Tensor) -> list[int] | None:
    """Arguments of `Arena.add` for a contiguous tensor that can be read inplace, else None."""
    number = _NUMBER.get(tensor.dtype)
    if number is None or is_wrapper(tensor) or not tensor.is_cpu or tensor.is_nested:
        return None
    try:
        if not tensor.is_contiguous():
            return None
        address, count = tensor.data_ptr(), tensor.numel()
    except (RuntimeError, ValueError):  # raised by tensors without contiguous memory and by lazy parameters
        return None
    if _lacks_memory(tensor, address) or tensor.is_neg():  # lazy negation
        return None if count else [0, 0, number]
    return [address, count, number]


def _address(tensor: torch.Tensor) -> int:
    try:
        address = tensor.data_ptr()
    except RuntimeError as error:  # raised by a tensor without memory
        raise _no_memory(tensor) from error
    if _lacks_memory(tensor, address) and tensor.numel():
        raise _no_memory(tensor)
    return address


def _lacks_memory(tensor: torch.Tensor, address: int) -> bool:
    """Whether the address is an offset from null, as for a tensor whose memory was freed."""
    return address == tensor.storage_offset() * tensor.element_size()


def _no_memory(tensor: torch.Tensor) -> SelectError:
    return SelectError(
        f"A {type(tensor).__name__} on {tensor.device} has no memory to summarize. "
        "Pass the plain tensor it represents, or exclude it."
    )


def _readable(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    """A dense CPU tensor with the same values, and its format number."""
    if is_oversized(tensor):
        raise SelectError(
            f"A view of {tensor.numel():,} elements that repeats those of a smaller tensor is too large to copy. "
            "Record the smaller tensor."
        )
    with torch.no_grad():
        if tensor.dtype in _MAGNITUDES:
            tensor = tensor.to(_MAGNITUDES[tensor.dtype]).abs()
        number = _NUMBER[tensor.dtype]
        if tensor.dtype in _ONE_BYTE:
            tensor = tensor.view(torch.uint8)  # can be copied on every device
        tensor = tensor.cpu().resolve_neg()
        return (tensor if _is_dense(tensor) else tensor.contiguous()), number


def _distinct(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    """The tensor without its broadcast dimensions, and how often each remaining element occurs."""
    if 0 not in tensor.stride() or tensor.numel() == 0:
        return tensor, 1
    with torch.no_grad():
        once = tensor.detach()
        for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
            if stride == 0 and size > 1:
                once = once.narrow(dim, 0, 1)
    return once, tensor.numel() // once.numel()


def is_oversized(tensor: torch.Tensor) -> bool:
    """Whether the tensor is a view that repeats elements and is too large to copy."""
    if tensor.layout is not torch.strided or tensor.is_nested or is_lazy(tensor) or is_wrapper(tensor):
        return False
    size = tensor.numel() * tensor.element_size()
    if size <= _MOST_REPEATED_BYTES:
        return False
    try:
        return size > tensor.untyped_storage().nbytes()
    except (RuntimeError, NotImplementedError):  # raised by a tensor without memory
        return False


def _refuse(tensor: torch.Tensor) -> None:
    """Raise if the tensor cannot be summarized."""
    if tensor.is_nested:  # asking for its shape raises
        raise SelectError("A nested tensor has no single shape. Record its `.to_padded_tensor(0.0)`.")
    if tensor.layout is not torch.strided:
        raise SelectError(
            f"A tensor of layout {tensor.layout} cannot be summarized. Record its `.to_dense()`, or its `.values()`."
        )
    if is_wrapper(tensor):
        raise SelectError(
            f"A {type(tensor).__name__} wraps other tensors: its memory does not contain its values. "
            "Record the plain tensor inside it."
        )
    if tensor.is_meta or is_lazy(tensor):
        raise _no_memory(tensor)
    if not (tensor.dtype in _NUMBER or tensor.dtype in _MAGNITUDES):
        raise SelectError(
            f"A tensor of dtype {dtype_name(tensor)} cannot be summarized. Convert it first, for example "
            "with `.dequantize()` or `.to(torch.float32)`."
        )


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill one block of memory without gaps or overlaps, in any order."""
    filled = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != filled:
                return tensor.numel() == 0
            filled *= size
    return True
