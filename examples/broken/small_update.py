"""Updates that are too small: a tiny learning rate, and a loss divided by the number of samples twice."""

import sys

import torch
from torch import nn

import layerscope as ls

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
kinds = ("output", "weight", "weight_grad", "update")

with ls.watch(model, optimizer, to=sys.argv[1] if sys.argv[1:] else "runs/small-update", every=1, kinds=kinds) as run:
    for _ in range(40):
        x = torch.randn(64, 16)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean() / len(x)  # the fault: mean() already divides
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        run.step(loss=loss)
