"""Weights that do not move: `detach()` cuts a branch off from the loss."""

import sys

import torch
from torch import Tensor, nn

import layerscope as ls


class TwoBranches(nn.Module):
    """A sum of two branches; one of them cannot learn."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(8, 16), nn.Linear(8, 16)
        self.head = nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        """One number per row."""
        return self.head(self.left(x).relu() + self.right(x).relu().detach())  # the fault


torch.manual_seed(0)
model = TwoBranches()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

with ls.watch(model, optimizer, to=sys.argv[1] if sys.argv[1:] else "runs/detached", every=2) as run:
    for _ in range(60):
        x = torch.randn(64, 8)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        run.step(loss=loss)
