"""Runs with traces for the browser tests."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

import layerscope as ls

ODD = "<img src=x onerror=document['title']='hit'>"


class Block(nn.Module):
    """A convolution with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1)
        self.norm = nn.GroupNorm(2, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.norm(self.conv(x)))  # the residual


class Net(nn.Module):
    """An image goes in; blocks, then a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = nn.Sequential(Block(), Block())
        self.cell = nn.Linear(8, 8)
        self.head = nn.ModuleDict({ODD: nn.Linear(8, 3)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = self.blocks(self.stem(x)).mean((2, 3))
        for _ in range(3):
            state = torch.tanh(self.cell(state)) + state
        logits: torch.Tensor = self.head[ODD](state)
        return logits


def traced() -> ls.Trace:
    """A forward and backward of the network; one pixel of its input is NaN."""
    torch.manual_seed(0)
    image = torch.randn(2, 3, 16, 16)
    image[0, 1, 4, 7] = float("nan")
    with ls.tracing(model := Net()) as trace:
        model(image).nan_to_num().sum().backward()
    return trace


def save_trace(folder: Path) -> Path:
    """A run with one trace."""
    return traced().save(folder).parents[1]


def watch_and_trace(folder: Path, *steps: int) -> None:
    """A short training, with a trace of some of its steps."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with ls.watch(model, optimizer, to=folder, every=1) as run:
        for step in range(4):
            x = torch.randn(16, 4)
            if step in steps:
                ls.trace(model, x).save(folder, step=step)
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            run.step(loss=loss)
