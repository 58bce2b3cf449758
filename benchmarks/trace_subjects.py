"""What the trace benchmark traces; needs torch and transformers alone, so that other tools can be measured too."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

os.environ["HF_HUB_OFFLINE"] = "1"  # nothing is fetched


class Loop(nn.Module):
    """A given number of small operations, one after another."""

    def __init__(self, operations: int) -> None:
        super().__init__()
        self.rounds = operations // 2

    def forward(self, x: Tensor) -> Tensor:
        """The last result."""
        for _ in range(self.rounds):
            x = x * 1.0001
            x = x + 0.1
        return x


@dataclass(frozen=True)
class Subject:
    """A model and what it is called with."""

    model: nn.Module
    inputs: tuple[Any, ...]


def loop(operations: int) -> Subject:
    return Subject(Loop(operations), (torch.randn(4, 4),))


def gpt2() -> Subject:
    from transformers import GPT2Config, GPT2Model

    model = GPT2Model(GPT2Config(use_cache=False)).eval()  # type: ignore[no-untyped-call]
    return Subject(model, (torch.randint(0, 50257, (2, 64)),))


def swinv2() -> Subject:
    from transformers import Swinv2Config, Swinv2Model

    sizes: dict[str, Any] = {"embed_dim": 128, "depths": [2, 2, 18, 2], "num_heads": [4, 8, 16, 32], "window_size": 8}
    model = Swinv2Model(Swinv2Config(image_size=256, **sizes)).eval()  # type: ignore[no-untyped-call]
    return Subject(model, (torch.randn(1, 3, 256, 256),))


SUBJECTS: dict[str, Callable[[], Subject]] = {
    "loop of 2,000": lambda: loop(2000),
    "GPT-2": gpt2,
    "Swinv2-base": swinv2,
}
