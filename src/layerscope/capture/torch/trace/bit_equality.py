"""Bitwise equality of two tensors of any class."""

from __future__ import annotations

import torch
from torch import Tensor


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
