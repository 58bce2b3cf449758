"""A loss that grows: its sign is wrong, so every step increases it."""

import sys

import torch
from torch import nn

import layerscope as ls

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

with ls.watch(model, optimizer, to=sys.argv[1] if sys.argv[1:] else "runs/diverging", every=2) as run:
    for _ in range(120):
        x = torch.randn(64, 8)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        (-loss).backward()  # the fault
        optimizer.step()
        optimizer.zero_grad()
        run.step(loss=loss)
