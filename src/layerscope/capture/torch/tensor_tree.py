"""The tensors inside whatever a module takes or gives, and what this process holds of each."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import NoneType

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from layerscope.capture.core import framework
from layerscope.capture.core.framework import Port
from layerscope.stats.torch import is_wrapper

_PLAIN = frozenset((NoneType, bool, int, float, str))


def tensors_in(value: object, port: str) -> Iterator[Port]:
    """Every tensor in a module's result, by its port."""
    return framework.tensors_in(value, port, Tensor)


def tensors_of(value: object) -> list[Tensor]:
    """The same tensors without their ports: quicker, for what happens a thousand times in a pass."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, (tuple, list)):
        return [tensor for item in value for tensor in tensors_of(item)]
    kind = type(value)
    if kind is dict:
        return [tensor for item in value.values() for tensor in tensors_of(item)]  # type: ignore[attr-defined]
    return [] if kind in _PLAIN else [tensor for _, tensor in tensors_in(value, "")]


def shape_of(tensor: Tensor) -> tuple[int, ...]:
    """The shape in plain whole numbers; of a nested tensor, a dimension of varying size is −1; of a lazy one, none."""
    if tensor.is_nested:
        return shape_of_nested(tensor)
    return () if is_lazy(tensor) else tuple(tensor.shape)


def shape_of_nested(tensor: Tensor) -> tuple[int, ...]:
    """The shape of a nested tensor; a dimension of varying size is −1."""
    return tuple(_regular_size(tensor, dimension) for dimension in range(tensor.dim()))


def _regular_size(tensor: Tensor, dimension: int) -> int:
    try:
        size = tensor.size(dimension)
    except RuntimeError:
        return -1
    return size if type(size) is int else -1


SHARD, BEFORE_REDUCTION = "shard", "before reduction"
_HOME = "torch.distributed.tensor"


def local_part(tensor: Tensor) -> tuple[Tensor, str]:
    """The tensor in this process's memory, and what it is of the whole: `shard`, `before reduction`, or "" for all.

    Only a DTensor has another tensor inside that is known to hold its values; no other is looked into.
    """
    if not is_wrapper(tensor):
        return tensor, ""
    home = sys.modules.get(_HOME)  # loaded if there is such a tensor
    if home is None or not isinstance(tensor, home.DTensor):
        return tensor, ""
    with torch.no_grad():
        part = tensor.to_local()
    placements = tensor.placements
    words = [SHARD] if any(not (each.is_replicate() or each.is_partial()) for each in placements) else []
    words += [BEFORE_REDUCTION] if any(each.is_partial() for each in placements) else []
    return part, ", ".join(words)
