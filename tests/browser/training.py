"""A real training, slow enough to be watched: python -m tests.browser.training FOLDER STEPS PAUSE_S."""

from __future__ import annotations

import sys
import time

import torch
from torch import nn

import layerscope as ls


class Block(nn.Module):
    """A residual block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.act = nn.ReLU()
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        added: torch.Tensor = self.down(self.act(self.up(self.norm(x))))
        return x + added


def train(folder: str, steps: int, pause_s: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), Block(32), Block(32), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with ls.watch(model, optimizer, to=folder, every=1) as run:
        for _ in range(steps):
            x = torch.randn(64, 8)
            loss = nn.functional.mse_loss(model(x), x.sin().sum(1, keepdim=True))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            run.step(loss=loss)
            time.sleep(pause_s)


if __name__ == "__main__":
    train(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
