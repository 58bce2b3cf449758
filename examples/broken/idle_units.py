"""Dead units in a layer that still learns: initial biases are so low that most of its ReLUs are 0 for every sample."""

import sys

import torch
from torch import nn

import layerscope as ls

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1))
with torch.no_grad():
    model[0].bias[:56] = -8.0  # the fault: they should start at 0
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)

with ls.watch(model, optimizer, to=sys.argv[1] if sys.argv[1:] else "runs/idle-units", every=1) as run:
    for _ in range(60):
        x = torch.randn(64, 8)
        loss = (model(x) - x.abs().sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        run.step(loss=loss)
