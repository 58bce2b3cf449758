"""Where in its memory a tensor lies, and what views of one memory have to do with one another. Counted in bytes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

ALIGNED = 64  # copies start at such a multiple, so that vector kernels split them as they split the original

#: Identity of a tensor's memory. Unlike `untyped_storage()` it leaves no Python object behind.
storage_id: Callable[[Tensor], int] = torch._C._storage_id  # type: ignore[attr-defined]  # missing from torch's stubs


class Place(NamedTuple):
    """The part of its memory that a strided tensor covers."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int  # in elements

    @property
    def extent(self) -> tuple[int, int]:
        """First byte and the byte after the last."""
        if 0 in self.shape:
            return 0, 0
        first = self.offset * self.dtype.itemsize
        reach = sum((n - 1) * s for n, s in zip(self.shape, self.stride, strict=True))
        return first, first + (reach + 1) * self.dtype.itemsize


def storage_of(tensor: Tensor) -> int:
    """Identity of the tensor's memory; a tensor without memory of its own (sparse, nested …) stands for itself."""
    try:
        return storage_id(tensor)
    except (NotImplementedError, RuntimeError):
        inner = unwrapped(tensor)
        return -id(tensor) if inner is tensor else storage_of(inner)


def unwrapped(tensor: Tensor) -> Tensor:
    """The tensor inside functorch's wrappers, such as those of vmap; the tensor itself where it has none."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor


def is_wrapper(tensor: Tensor) -> bool:
    """Whether the tensor only exists inside a functorch transform."""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


def is_plain(tensor: Tensor) -> bool:
    """Whether the tensor is nothing but numbers laid out in memory."""
    return (
        tensor.layout is torch.strided
        and not (tensor.is_nested or tensor.is_quantized or tensor.is_meta or tensor.is_conj() or tensor.is_neg())
        and type(tensor).__torch_dispatch__ is Tensor.__torch_dispatch__
        and not is_wrapper(tensor)
    )


def place_of(tensor: Tensor) -> Place | None:
    """Where the tensor lies; None where that cannot be said."""
    if not is_plain(tensor):
        return None
    return Place(tensor.dtype, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))


def is_cut(tensor: Tensor) -> bool:
    """Whether the tensor's memory was made too small for it: whoever reads it reads what is not there."""
    place = place_of(tensor)
    return place is not None and place.extent[1] > tensor.untyped_storage().nbytes()


def overlap(one: Place, other: Place) -> bool:
    """Whether the two may have bytes in common."""
    (start, end), (other_start, other_end) = one.extent, other.extent
    return start < other_end and other_start < end


def covers(one: Place, other: Place) -> bool:
    """Whether every byte of the other certainly belongs to the first."""
    (start, end), (other_start, other_end) = one.extent, other.extent
    dense = math.prod(one.shape) * one.dtype.itemsize == end - start
    return dense and start <= other_start and other_end <= end


@torch.no_grad()
def update(
    old: Tensor | None, written: tuple[Tensor, ...], at: tuple[Any, ...], written_at: tuple[tuple[Any, ...], ...]
) -> Tensor:
    """A tensor as it is after other views of its memory were written; places are given as plain tuples.

    `old` is None where the first of the writes covers the tensor.
    """
    place, places = Place(*at), [Place(*other) for other in written_at]
    memory, start = _memory((place, *places), written[0].device)
    if old is not None:
        _write(memory, start, place, old)
    for values, other in zip(written, places, strict=True):
        _write(memory, start, other, values)
    return lay(memory, place, start)


@torch.no_grad()
def alias(tensor: Tensor, at: tuple[Any, ...], other_at: tuple[Any, ...]) -> Tensor:
    """What another view sees of a tensor's memory; both places are given as plain tuples."""
    place, other = Place(*at), Place(*other_at)
    memory, start = _memory((place, other), tensor.device)
    _write(memory, start, place, tensor)
    return lay(memory, other, start)


def lay(memory: Tensor, place: Place, start: int) -> Tensor:
    """A tensor at its place in a copy of its memory that begins at byte `start`."""
    offset = place.offset - start // place.dtype.itemsize if 0 not in place.shape else 0
    empty = torch.empty(0, dtype=place.dtype, device=memory.device)
    return empty.set_(memory.untyped_storage(), offset, place.shape, place.stride)


def copy_of(tensor: Tensor) -> Tensor:
    """A copy that is laid out as the tensor is, and requires a gradient if it does."""
    return copies_of([tensor])[0]


def copies_of(tensors: list[Tensor]) -> list[Tensor]:
    """Copies of tensors that share one memory, which they share again."""
    if torch._C._len_torch_dispatch_stack():  # a mode of the user's must not see our copying, nor take part in it
        with _disable_current_modes():
            return _copies_of(tensors)
    return _copies_of(tensors)


def _copies_of(tensors: list[Tensor]) -> list[Tensor]:
    with torch.no_grad(), torch._C.DisableTorchFunction():
        places = [place_of(tensor) for tensor in tensors]
        known = [place.extent for place in places if place is not None and 0 not in place.shape]
        if not known:
            return [_marked(tensor.detach().clone(), tensor) for tensor in tensors]
        start = min(first for first, _ in known) // ALIGNED * ALIGNED
        end = max(last for _, last in known)
        sample = next(t for t, place in zip(tensors, places, strict=True) if place and 0 not in place.shape)
        whole = torch.empty(0, dtype=torch.uint8, device=sample.device)
        memory = whole.set_(sample.untyped_storage(), start, (end - start,), (1,)).clone()
        return [
            _marked(tensor.detach().clone() if place is None else lay(memory, place, start), tensor)
            for tensor, place in zip(tensors, places, strict=True)
        ]


def _marked(copied: Tensor, original: Tensor) -> Tensor:
    kind = type(original)
    if kind not in (Tensor, torch.nn.Parameter) and type(copied) is Tensor and issubclass(kind, Tensor):
        copied = copied.as_subclass(kind)
    if original.requires_grad and not copied.is_inference():
        copied.requires_grad_()
    return copied


def _memory(places: tuple[Place, ...], device: torch.device) -> tuple[Tensor, int]:
    start = min(place.extent[0] for place in places) // ALIGNED * ALIGNED
    end = max(place.extent[1] for place in places)
    return torch.zeros(max(end - start, 0), dtype=torch.uint8, device=device), start


def _write(memory: Tensor, start: int, place: Place, values: Tensor) -> None:
    """Copy values to their place; of an expanded dimension the first will do, as all are one."""
    single = tuple(1 if stride == 0 else size for size, stride in zip(place.shape, place.stride, strict=True))
    for dimension, size in enumerate(single):
        values = values.narrow(dimension, 0, min(size, values.shape[dimension]))
    lay(memory, place._replace(shape=single), start).copy_(values)
