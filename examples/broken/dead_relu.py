"""Dead units: one batch with a huge target pushes the biases of a layer so far down that its ReLU never opens again."""

import sys

import torch
from torch import nn

import layerscope as ls

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)

with ls.watch(model, optimizer, to=sys.argv[1] if sys.argv[1:] else "runs/dead-relu", every=1) as run:
    for step in range(60):
        if step == 20:
            with torch.no_grad():
                model[2].bias -= 100.0  # the fault: the effect of a far too large update
        x = torch.randn(64, 8)
        loss = (model(x) - x.abs().sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        run.step(loss=loss)
