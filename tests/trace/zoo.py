"""The zoo: models and functions, each with something that is easy to get wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Case:
    """Something to call, and what to call it with."""

    call: Callable[..., Any]  # a model, or a plain function
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    open_composites: bool = False
    only_eval: bool = False  # in training it draws random numbers that no seed repeats
    unproven: bool = False  # torch counts a change that no call made: not every value is proven current
    unseen: bool = False  # the way from the input to the output leads through something that cannot be seen
    gap: bool = False  # and a tensor comes back from there


ZOO: dict[str, Callable[[], Case]] = {}


def specimen(make: Callable[[], Case]) -> Callable[[], Case]:
    """Add a case to the zoo under the function's name."""
    assert make.__name__ not in ZOO, make.__name__
    ZOO[make.__name__] = make
    return make


def numbers(*shape: int) -> Tensor:
    """Random numbers, always the same."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(7))


class Calls(nn.Module):
    """A model made of a function of itself and the input, with submodules by name."""

    def __init__(self, forward: Callable[..., Any], **children: nn.Module) -> None:
        super().__init__()
        for name, child in children.items():
            self.add_module(name, child)
        self._forward = forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._forward(self, *args, **kwargs)
