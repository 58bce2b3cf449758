"""A residual network learns to classify three spirals, and one batch of its training is corrupt.

At two thirds of the training the inputs of one batch are a thousand times too large, as from a broken data shard: the
loss jumps, and the page shows which layers stay disturbed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import Tensor, nn

from layerscope.api import watch

STEPS = 600
ARMS, WIDTH, DEPTH, BATCH = 3, 64, 4, 256


class ResidualBlock(nn.Module):
    """A residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.act = nn.GELU()
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """The input plus the residual."""
        added: Tensor = self.down(self.act(self.up(self.norm(x))))
        return x + added


class SpiralNet(nn.Module):
    """Classifies points of the plane by spiral arm."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(2, WIDTH)
        self.blocks = nn.Sequential(*(ResidualBlock() for _ in range(DEPTH)))
        self.head = nn.Linear(WIDTH, ARMS)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the arms."""
        logits: Tensor = self.head(self.blocks(self.embed(x)))
        return logits


def batch(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Noisy points on the arms of a spiral, and the index of their arm."""
    arm = torch.randint(ARMS, (BATCH,), generator=generator)
    along = torch.rand(BATCH, generator=generator).sqrt()
    angle = 5.0 * along + arm * (2 * math.pi / ARMS) + 0.15 * torch.randn(BATCH, generator=generator)
    return torch.stack((along * angle.cos(), along * angle.sin()), dim=1), arm


def train(to: Path, steps: int, track: Callable[[range, str], Iterable[int]]) -> None:
    """Train and record; one batch is corrupt. `track` shows the progress."""
    torch.set_num_threads(1)  # the network is too small for more threads, and the page needs the other core
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    model = SpiralNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    corrupt = steps * 2 // 3
    with watch(model, optimizer, to=to, every=2) as run:
        for step in track(range(steps), "training"):
            x, y = batch(generator)
            if step == corrupt:
                run.note("This batch is corrupt: its inputs are a thousand times too large.")
                x = x * 1000
            logits = model(x)
            loss = nn.functional.cross_entropy(logits, y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            run.step(loss=loss, accuracy=(logits.argmax(1) == y).float().mean())
