"""Arguments of a call without its tensors: a skeleton that keeps no tensor alive and can be filled again."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from types import EllipsisType, NoneType
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

HOLE = object()  # replaces a tensor; the garbage collector would track an instance of a Python class
POSITIONS = tuple(str(at) for at in range(64))

_PLAIN = frozenset(
    (int, float, bool, NoneType, str, complex, EllipsisType, torch.dtype, torch.device, torch.layout, torch.Size,
     torch.memory_format, torch.Generator)
)  # fmt: skip

#: argument, tensor, argument, tensor …: flat, because pairs would burden the garbage collector
FlatTensors = list[Any]


def skeleton_of(
    args: tuple[Any, ...], kwargs: dict[str, Any], tensors: FlatTensors
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The arguments with holes for tensors, keyword arguments as name, value, name …; adds to `tensors`."""
    skeleton = []
    for at, value in enumerate(args):
        kind = type(value)
        if kind is Tensor or kind is Parameter:
            tensors.append(POSITIONS[at] if at < 64 else str(at))
            tensors.append(value)
            skeleton.append(HOLE)
        elif kind in _PLAIN:
            skeleton.append(value)
        else:
            skeleton.append(_apart(value, str(at), tensors))
    if not kwargs:
        return tuple(skeleton), ()
    return tuple(skeleton), tuple([part for at, value in kwargs.items() for part in (at, _apart(value, at, tensors))])


def filled(
    args: tuple[Any, ...], kwargs: dict[str, Any], tensor_at: Callable[[str], Any]
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments with every hole filled by `tensor_at(path)`."""
    filled = [_fill(value, str(at), tensor_at) for at, value in enumerate(args)]
    return filled, {name: _fill(value, name, tensor_at) for name, value in kwargs.items()}


def holes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[str], list[Tensor]]:
    """The paths of all holes, in order, and remaining tensors, of which there should be none."""
    paths: list[str] = []
    left: list[Tensor] = []

    def visit(value: Any, at: str) -> None:
        if value is HOLE:
            paths.append(at)
        elif isinstance(value, Tensor):
            left.append(value)
        else:
            rebuild(value, at, visit)

    for at, value in enumerate(args):
        visit(value, str(at))
    for name, value in kwargs.items():
        visit(value, name)
    return paths, left


def _apart(value: Any, at: str, tensors: FlatTensors) -> Any:
    if type(value) in _PLAIN:
        return value
    if isinstance(value, Tensor):
        tensors.append(at)
        tensors.append(value)
        return HOLE
    return rebuild(value, at, lambda item, path: _apart(item, path, tensors))


def _fill(value: Any, at: str, tensor_at: Callable[[str], Any]) -> Any:
    if value is HOLE:
        return tensor_at(at)
    if type(value) in _PLAIN:
        return value
    return rebuild(value, at, lambda item, path: _fill(item, path, tensor_at))


def rebuild(value: Any, at: str, part: Callable[[Any, str], Any]) -> Any:
    """A container of the same class with each item replaced; anything else unchanged."""
    if isinstance(value, (list, tuple)) and type(value) is not torch.Size:
        items = [part(item, f"{at}.{i}") for i, item in enumerate(value)]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        mapping = copy.copy(value)  # which keeps its class
        for key, item in value.items():
            dict.__setitem__(mapping, key, part(item, f"{at}.{key}"))
        return mapping
    if isinstance(value, slice):
        return slice(*(part(getattr(value, end), f"{at}.{end}") for end in ("start", "stop", "step")))
    if is_dataclass(value) and not isinstance(value, type):
        twin = copy.copy(value)
        for field in fields(value):
            object.__setattr__(twin, field.name, part(getattr(value, field.name), f"{at}.{field.name}"))
        return twin
    return value
