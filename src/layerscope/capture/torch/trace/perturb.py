"""Other values for a tensor, to see whether what was computed from it changes."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from layerscope.capture.torch.trace.compare import has_values
from layerscope.capture.torch.trace.places import copy_of, is_plain

#: Calls that read outside their memory when lengths or offsets in a tensor are wrong.
TRUSTING = frozenset(("embedding_bag", "_pack_padded_sequence", "_pad_packed_sequence", "nested_tensor_from_jagged"))


def can_perturb(tensor: Tensor, function: str) -> bool:
    """Whether other values can be put in the tensor's place."""
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
        # Not around the `yield`: who stops early would go on without gradients until the generator is collected.
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
