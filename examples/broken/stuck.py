"""Weights that do not move: the head was replaced after the optimizer was created, which still trains the old one."""

import sys

import torch
from torch import nn

import layerscope as ls

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
model[2] = nn.Linear(32, 1)  # the fault: the optimizer does not contain it

with ls.watch(model, optimizer, to=sys.argv[1] if sys.argv[1:] else "runs/stuck", every=2) as run:
    for _ in range(60):
        model.zero_grad()
        x = torch.randn(64, 8)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        run.step(loss=loss)
